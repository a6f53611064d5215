import 'reflect-metadata';
import { Body, Controller, Module, Post, UseInterceptors } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import pg from 'pg';
import { Client, idempotency } from '@stet-go/stet/nest';

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] });
const once = idempotency({ pool, scope: (request) => request.get('X-Account') }); // as your guard has established it

@Controller('payments')
class Payments {
  @Post()
  @UseInterceptors(once)
  async pay(@Body() body: { amount: number }, @Client() client: pg.ClientBase) {
    const { rows } = await client.query('INSERT INTO payments (amount) VALUES ($1) RETURNING id', [body.amount]);
    return { payment: rows[0].id };
  }
}

@Module({ controllers: [Payments] })
class App {}

const app = await NestFactory.create(App, { rawBody: true, logger: false });
await app.listen(process.env['PORT'] ?? 8080, '127.0.0.1');
console.log(`listening on ${await app.getUrl()}`);
