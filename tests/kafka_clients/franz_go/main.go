// A franz-go producer with client metrics: BOOTSTRAP. Produces until it is interrupted, then closes its client.
package main

import (
	"context"
	"iter"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	var sent atomic.Int64
	// A counter of its own (KIP-1076): franz-go leaves out sums that did not change, as its other one mostly does not.
	metrics := func() iter.Seq[kgo.Metric] {
		return func(yield func(kgo.Metric) bool) {
			yield(kgo.Metric{Name: "franz.go.sent", Type: kgo.MetricTypeSum, ValueInt: sent.Load()})
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ClientID("judged"),
		kgo.DefaultProduceTopic("verify-client"),
		kgo.UserMetricsFn(metrics),
	)
	if err != nil {
		panic(err)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	tick := time.NewTicker(100 * time.Millisecond)
	for {
		select {
		case <-interrupted:
			client.Close()
			return
		case <-tick.C:
			client.Produce(context.Background(), &kgo.Record{Value: []byte("a record")}, func(*kgo.Record, error) { sent.Add(1) })
		}
	}
}
