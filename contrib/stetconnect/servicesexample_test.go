package stetconnect_test

import (
	"testing"

	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/store/memory"
)

func TestServicesOfThePageAreAccepted(t *testing.T) {
	engine, account, payments := newEngine(t, memory.New(memory.Options{})), stetconnect.SingleTenant, schema(t)
	idem, err := stetconnect.New(engine, stetconnect.Options{
		Scope:   account,
		Streams: []string{"/payments.v1.Payments/Watch"}, // it streams, and may pass unprotected
	})
	if err == nil {
		err = idem.Check(payments) // File_payments_proto.Services().ByName("Payments") of generated code
	}
	if err != nil || idem == nil {
		t.Error(idem, err)
	}
}
