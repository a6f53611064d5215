package intake

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/config"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/stet-go/stet/stetmsg/sqs"
)

func (s Source) sqs(client sqs.API) sqs.Options {
	return sqs.Options{Client: client, QueueURL: s.URL, DeadLetterQueueURL: s.DeadLetter, Visibility: s.Visibility, Prefetch: s.Prefetch}
}

func checkSQS(s Source) error {
	for field, raw := range map[string]string{"from": s.URL, "dead_letter": s.DeadLetter} {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.Count(strings.Trim(u.Path, "/"), "/") < 1 {
			return wrong(field, "it must be the URL of a queue of SQS, like https://sqs.eu-central-1.amazonaws.com/123456789012/orders")
		}
		if u.User != nil || u.RawQuery != "" {
			return wrong(field, "a queue's URL has neither user nor query; credentials are those of the environment")
		}
	}
	if s.Ordered && !strings.HasSuffix(s.URL, ".fifo") {
		return wrong("ordered", "SQS keeps an order in FIFO queues only, whose names end in .fifo")
	}
	if _, err := sqs.New(unused[types.Message](), s.sqs(&awssqs.Client{})); err != nil {
		return wrong("from", "%w", reason(err))
	}
	return nil
}

// region is that of the queue's URL, "" if it does not say.
func (s Source) region() string {
	u, err := url.Parse(s.URL)
	if err != nil {
		return ""
	}
	parts := strings.Split(u.Hostname(), ".")
	if len(parts) > 3 && parts[0] == "sqs" && parts[2] == "amazonaws" {
		return parts[1]
	}
	return ""
}

func runSQS(ctx context.Context, s Source, o Options) error {
	c, err := consumer(o, sqs.Envelope, sqs.Part)
	if err != nil {
		return err
	}
	client, err := SQSClient(ctx, s.URL)
	if err != nil {
		return err
	}
	r, err := sqs.New(c, s.sqs(client))
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// SQSClient returns a client for a queue of SQS, with what the environment has of AWS.
func SQSClient(ctx context.Context, queue string) (*awssqs.Client, error) {
	s := Source{URL: queue}
	var options []func(*config.LoadOptions) error
	if region := s.region(); region != "" {
		options = append(options, config.WithRegion(region))
	}
	within, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	found, err := config.LoadDefaultConfig(within, options...)
	if err != nil {
		return nil, fmt.Errorf("SQS: the configuration of AWS: %w", err)
	}
	if found.Region == "" {
		return nil, fmt.Errorf("SQS: the queue's URL names no region; set AWS_REGION")
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	endpoint := u.Scheme + "://" + u.Host
	return awssqs.NewFromConfig(found, func(o *awssqs.Options) { o.BaseEndpoint = &endpoint }), nil
}
