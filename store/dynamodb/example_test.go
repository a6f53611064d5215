package dynamodb_test

import (
	"context"
	"log"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsdynamodb "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/dynamodb"
)

// A payment and its outcome are one transaction of DynamoDB.
func ExampleOpen() {
	ctx := context.Background()
	var config aws.Config // config.LoadDefaultConfig(ctx) of github.com/aws/aws-sdk-go-v2/config
	db := awsdynamodb.NewFromConfig(config)
	if err := dynamodb.CreateTable(ctx, db, "stet"); err != nil { // once, at deployment
		log.Fatal(err)
	}
	s, err := dynamodb.Open(ctx, db, dynamodb.Options{Table: "stet"})
	if err != nil {
		log.Fatal(err)
	}
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	payments, err := stet.WithTx(engine, s)
	if err != nil {
		log.Fatal(err)
	}
	op := stet.Op{Scope: "acct_1", Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"}
	_, err = stet.DoTx(ctx, payments, op, func(_ context.Context, tx *dynamodb.Tx) (string, error) {
		tx.Add(types.TransactWriteItem{Put: &types.Put{
			TableName: aws.String("payments"),
			Item:      map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: "pay_1"}},
		}})
		return "pay_1", nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
