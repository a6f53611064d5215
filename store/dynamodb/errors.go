package dynamodb

import (
	"errors"
	"net"
	"net/http"
	"slices"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/stet-go/stet/store"
)

// refused reports whether a request that failed had no effect: DynamoDB refused it, or it was never
// sent.
func refused(err error) bool {
	var response *awshttp.ResponseError
	if errors.As(err, &response) {
		return response.HTTPStatusCode() >= http.StatusBadRequest && response.HTTPStatusCode() < http.StatusInternalServerError
	}
	var network *net.OpError
	return errors.Is(err, store.ErrNotDone) || errors.As(err, &network) && network.Op == "dial"
}

// passing are errors of DynamoDB that the next try may not have.
var passing = []string{"ThrottlingException", "ThrottledException", "ProvisionedThroughputExceededException", "RequestLimitExceeded",
	"TransactionConflictException", "TransactionInProgressException", "LimitExceededException"}

// again reports whether a request that failed may succeed later.
func again(err error) bool {
	var api smithy.APIError
	if errors.As(err, &api) && refused(err) {
		return slices.Contains(passing, api.ErrorCode())
	}
	return !errors.Is(err, store.ErrNotDone)
}

// conflict returns the item that stands, if a write was refused because the record has changed.
func conflict(err error) (stands item, ok bool) {
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) {
		return failed.Item, true
	}
	return nil, false
}
