package stetconnect_test

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/store/memory"
)

func TestServicesOfThePageAreAccepted(t *testing.T) {
	engine, account, payments := newEngine(t, memory.New(memory.Options{})), stetconnect.SingleTenant, schema(t)
	idem, err := stetconnect.New(engine, stetconnect.Options{
		Scope:    account,
		Services: []protoreflect.ServiceDescriptor{payments}, // File_payments_proto.Services().ByName("Payments") of generated code
		Streams:  []string{"/payments.v1.Payments/Watch"},    // it streams, and may pass unprotected
	})
	if err != nil || idem == nil {
		t.Error(idem, err)
	}
}
