package sqs_test

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// fake stands in for SQS: it speaks as much of its protocol (AWS JSON 1.0) as
// the package uses.
type fake struct {
	mu       sync.Mutex
	queues   map[string][]*stored
	n        int
	extended int    // visibility changed to more than nothing
	refused  string // a body that SendMessage does not take
	limit    int    // of a message in bytes; 0 for none
	seen     map[string]time.Time
}

// deduplicates is for how long a FIFO queue drops messages with an ID that it has
// seen, and says that it took it.
const deduplicates = 5 * time.Minute

type stored struct {
	ID         string
	Body       string
	Attributes map[string]any
	Group      string

	Deduplication string
	visible       time.Time
	count         int
}

// newFake returns a fake and a client to it.
func newFake(t *testing.T) (*fake, *sqs.Client) {
	t.Helper()
	f := &fake{queues: make(map[string][]*stored), seen: make(map[string]time.Time)}
	server := httptest.NewServer(f)
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	return f, sqs.New(sqs.Options{Region: "eu-central-1", BaseEndpoint: &server.URL, Credentials: aws.AnonymousCredentials{},
		HTTPClient: &http.Client{Transport: transport}})
}

type call struct {
	QueueURL               string `json:"QueueUrl"`
	MessageBody            string
	MessageAttributes      map[string]any
	MessageGroupID         string `json:"MessageGroupId"`
	MaxNumberOfMessages    int
	WaitTimeSeconds        int
	VisibilityTimeout      int
	ReceiptHandle          string
	MessageDeduplicationID string `json:"MessageDeduplicationId"`
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c call
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var out any = struct{}{}
	switch _, name, _ := strings.Cut(r.Header.Get("X-Amz-Target"), "."); name {
	case "SendMessage":
		f.mu.Lock()
		if f.refused != "" && c.MessageBody == f.refused {
			f.mu.Unlock()
			http.Error(w, `{"__type":"com.amazonaws.sqs#InvalidMessageContents"}`, http.StatusBadRequest)
			return
		}
		size := len(c.MessageBody)
		for name, a := range c.MessageAttributes {
			v, _ := a.(map[string]any)["StringValue"].(string)
			size += len(name) + len("String") + len(v)
		}
		if f.limit > 0 && size > f.limit {
			f.mu.Unlock()
			http.Error(w, `{"__type":"com.amazonaws.sqs#InvalidParameterValue","message":"One or more parameters are invalid. Reason: Message must be shorter than `+strconv.Itoa(f.limit)+` bytes."}`, http.StatusBadRequest)
			return
		}
		f.n++
		m := &stored{ID: strconv.Itoa(f.n), Body: c.MessageBody, Attributes: c.MessageAttributes, Group: c.MessageGroupID, Deduplication: c.MessageDeduplicationID}
		if id := c.QueueURL + " " + m.Deduplication; m.Deduplication == "" || time.Since(f.seen[id]) > deduplicates {
			f.seen[id] = time.Now()
			f.queues[c.QueueURL] = append(f.queues[c.QueueURL], m)
		}
		f.mu.Unlock()
		out = map[string]any{"MessageId": m.ID, "MD5OfMessageBody": sum(m.Body)}
	case "ReceiveMessage":
		messages := f.take(c)
		for end := time.Now().Add(time.Duration(c.WaitTimeSeconds) * time.Second); len(messages) == 0 && time.Now().Before(end); messages = f.take(c) {
			time.Sleep(5 * time.Millisecond)
		}
		out = map[string]any{"Messages": messages}
	case "DeleteMessage", "ChangeMessageVisibility":
		f.change(c, name == "DeleteMessage")
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_ = json.NewEncoder(w).Encode(out)
}

// take returns visible messages, and none of a group with an invisible one.
func (f *fake) take(c call) (messages []any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	blocked := map[string]bool{}
	for _, m := range f.queues[c.QueueURL] {
		if m.visible.After(now) && m.Group != "" {
			blocked[m.Group] = true
		}
	}
	for _, m := range f.queues[c.QueueURL] {
		if m.visible.After(now) || blocked[m.Group] || len(messages) == c.MaxNumberOfMessages {
			continue
		}
		m.visible = now.Add(time.Duration(c.VisibilityTimeout) * time.Second)
		m.count++
		messages = append(messages, map[string]any{"MessageId": m.ID, "ReceiptHandle": m.ID, "Body": m.Body, "MD5OfBody": sum(m.Body),
			"MessageAttributes": m.Attributes,
			"Attributes":        map[string]string{"ApproximateReceiveCount": strconv.Itoa(m.count), "MessageGroupId": m.Group}})
	}
	return messages
}

func (f *fake) change(c call, remove bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[c.QueueURL]
	for i, m := range q {
		if m.ID != c.ReceiptHandle {
			continue
		}
		if remove {
			f.queues[c.QueueURL] = append(q[:i:i], q[i+1:]...)
			return
		}
		if c.VisibilityTimeout > 0 {
			f.extended++
		}
		m.visible = time.Now().Add(time.Duration(c.VisibilityTimeout) * time.Second)
	}
}

func (f *fake) queue(url string) []stored {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []stored
	for _, m := range f.queues[url] {
		all = append(all, *m)
	}
	return all
}

func sum(s string) string {
	h := md5.Sum([]byte(s)) // SQS's checksum
	return hex.EncodeToString(h[:])
}
