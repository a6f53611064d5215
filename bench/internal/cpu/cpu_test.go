package cpu

import (
	"os"
	"testing"
	"time"
)

func TestTimeIsReadBehindANameWithParentheses(t *testing.T) {
	const stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 3 4 20 0 5 0 100 1000 10"
	threads, children, err := parse([]byte(stat))
	if err != nil || threads != 3*time.Second || children != 70*time.Millisecond {
		t.Errorf("%v, %v, %v", threads, children, err)
	}
	if _, _, err := parse([]byte("7 (a) S 1")); err == nil {
		t.Error("a line that is cut off is read")
	}
}

func TestWorkIsSeen(t *testing.T) {
	before, err := Used(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const work = 50 * time.Millisecond
	for began, n := time.Now(), 0; ; n++ {
		if after, err := Used(os.Getpid()); err != nil || after-before >= work {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("a minute of work after %d readings, and less than %v of it is seen", n, work)
		}
	}
}

func TestAProcessThatIsGoneHasUsedNothing(t *testing.T) {
	if used, err := Used(1 << 30); used != 0 || err != nil {
		t.Errorf("%v, %v", used, err)
	}
}
