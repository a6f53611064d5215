// The servers of the queues, as clients name them.

const [host, port] = (process.env.STET_REDIS ?? ':').split(':');

export const connection = { host, port: Number(port), maxRetriesPerRequest: null };

const { Kafka, logLevel } = process.env.STET_KAFKA ? (await import('kafkajs')).default : {};

export const kafka = Kafka && new Kafka({ brokers: process.env.STET_KAFKA.split(','), logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, retries: 20 } });
