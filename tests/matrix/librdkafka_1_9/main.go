// One step of the matrix with librdkafka 1.9: STEP BOOTSTRAP TOPIC CLIENT_ID, record sizes on stdin; consume prints what it read.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/confluentinc/confluent-kafka-go/kafka"
)

const patienceMs = 60_000

func main() {
	step, bootstrap, topic, clientID := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	steps := map[string]func(kafka.ConfigMap, string) error{
		"administer": administer, "produce": produce, "transact": transact, "consume": consume, "version": version,
	}
	if err := steps[step](kafka.ConfigMap{"bootstrap.servers": bootstrap, "client.id": clientID}, topic); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func version(kafka.ConfigMap, string) error {
	_, text := kafka.LibraryVersion()
	fmt.Println(text)
	return nil
}

func administer(config kafka.ConfigMap, topic string) error {
	admin, err := kafka.NewAdminClient(&config)
	if err != nil {
		return err
	}
	defer admin.Close()
	wanted := []kafka.TopicSpecification{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}
	created, err := admin.CreateTopics(context.Background(), wanted)
	if err == nil && created[0].Error.Code() != kafka.ErrNoError {
		err = created[0].Error
	}
	return err
}

func records() [][]byte {
	var made [][]byte
	for at := 0; at < 20; at++ {
		size := []int{0, 100, 1_000, 30_000}[at%4]
		made = append(made, append([]byte(fmt.Sprintf("%d-", at)), make([]byte, size)...))
	}
	return made
}

func sent(producer *kafka.Producer, topic string) error {
	delivered := make(chan kafka.Event, 100)
	for _, value := range records() {
		to := kafka.TopicPartition{Topic: &topic, Partition: kafka.PartitionAny}
		if err := producer.Produce(&kafka.Message{TopicPartition: to, Value: value}, delivered); err != nil {
			return err
		}
	}
	for range records() {
		if message := (<-delivered).(*kafka.Message); message.TopicPartition.Error != nil {
			return message.TopicPartition.Error
		}
	}
	return nil
}

func produce(config kafka.ConfigMap, topic string) error {
	producer, err := kafka.NewProducer(&config)
	if err != nil {
		return err
	}
	defer producer.Close()
	return sent(producer, topic)
}

func transact(config kafka.ConfigMap, topic string) error {
	config["transactional.id"] = topic
	producer, err := kafka.NewProducer(&config)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err = producer.InitTransactions(context.Background()); err != nil {
		return err
	}
	if err = producer.BeginTransaction(); err != nil {
		return err
	}
	if err = sent(producer, topic); err != nil {
		return err
	}
	return producer.CommitTransaction(context.Background())
}

func consume(config kafka.ConfigMap, topic string) error {
	config["group.id"], config["auto.offset.reset"] = topic+"-g", "earliest"
	consumer, err := kafka.NewConsumer(&config)
	if err != nil {
		return err
	}
	defer consumer.Close()
	if err = consumer.Subscribe(topic, nil); err != nil {
		return err
	}
	deadline := time.Now().Add(patienceMs * time.Millisecond)
	for read := 0; read < 2*len(records()) && time.Now().Before(deadline); {
		if message, err := consumer.ReadMessage(time.Second); err == nil {
			read++
			number, _, _ := strings.Cut(string(message.Value), "-")
			fmt.Println(number, len(message.Value))
		}
	}
	return nil
}
