// Package topic makes topics of Kafka for tests, and reads how much of them a group has committed.
package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// again is how long Await waits between two requests.
const again = 50 * time.Millisecond

// Create creates topics and waits until each of their partitions is served.
func Create(ctx context.Context, cl *kgo.Client, partitions int32, replicas int16, names ...string) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 30_000
	for _, name := range names {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, replicas
		req.Topics = append(req.Topics, t)
	}
	for {
		resp, err := req.RequestWith(ctx, cl)
		if err != nil {
			return fmt.Errorf("topics %q: %w", names, err)
		}
		for _, t := range resp.Topics {
			if code := kerr.ErrorForCode(t.ErrorCode); !errors.Is(code, kerr.TopicAlreadyExists) {
				err = cmp.Or(err, code)
			}
		}
		switch {
		case err == nil:
			return Await(ctx, cl, names...)
		case !errors.Is(err, kerr.InvalidReplicationFactor) && !kerr.IsRetriable(err): // a broker of a new cluster may be missing yet
			return fmt.Errorf("topics %q: %w", names, err)
		}
		if err := wait(ctx, err); err != nil {
			return fmt.Errorf("topics %q: %w", names, err)
		}
	}
}

// Await waits until each partition of the topics is served, and the groups' coordinators are. A broker that has started
// does not serve them at once.
func Await(ctx context.Context, cl *kgo.Client, names ...string) error {
	for {
		err := served(ctx, cl, names)
		if err == nil {
			return nil
		}
		if err := wait(ctx, err); err != nil {
			return fmt.Errorf("topics %q are not served: %w", names, err)
		}
	}
}

func served(ctx context.Context, cl *kgo.Client, names []string) error {
	for _, name := range names {
		if _, err := Ends(ctx, cl, name); err != nil {
			return err
		}
	}
	_, err := Committed(ctx, cl, "topic.Await", names[0])
	return err
}

// wait waits before the next request, or returns the error of the last one if ctx has ended.
func wait(ctx context.Context, last error) error {
	timer := time.NewTimer(again)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), last)
	}
}

// Leaders returns the node ID of the leader of each partition of a topic.
func Leaders(ctx context.Context, cl *kgo.Client, name string) ([]int32, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &name
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, fmt.Errorf("metadata of %d topics", len(resp.Topics))
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return nil, err
	}
	leaders := make([]int32, len(resp.Topics[0].Partitions))
	for _, p := range resp.Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return nil, err
		}
		leaders[p.Partition] = p.Leader
	}
	return leaders, nil
}

// Ends returns the number of records of each partition of a topic.
func Ends(ctx context.Context, cl *kgo.Client, name string) ([]int64, error) {
	leaders, err := Leaders(ctx, cl, name)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = name
	for n := range leaders {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = int32(n), -1 // the latest
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	ends, seen := make([]int64, len(leaders)), 0
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, err
			}
			ends[p.Partition] = p.Offset
			seen++
		}
	}
	if seen != len(leaders) {
		return nil, fmt.Errorf("offsets of %d of %d partitions", seen, len(leaders))
	}
	return ends, nil
}

// Committed returns the sum of the offsets that a group has committed in a topic.
func Committed(ctx context.Context, cl *kgo.Client, group, name string) (sum int64, err error) {
	leaders, err := Leaders(ctx, cl, name)
	if err != nil {
		return 0, err
	}
	t := kmsg.NewOffsetFetchRequestGroupTopic()
	t.Topic = name
	for n := range leaders {
		t.Partitions = append(t.Partitions, int32(n))
	}
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, g.Topics = group, append(g.Topics, t)
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return 0, err
	}
	for _, g := range resp.Groups {
		err = cmp.Or(err, kerr.ErrorForCode(g.ErrorCode))
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				err = cmp.Or(err, kerr.ErrorForCode(p.ErrorCode))
				sum += max(0, p.Offset)
			}
		}
	}
	return sum, err
}
