package cpu

import (
	"os"
	"testing"
	"time"
)

func TestTimeIsReadBehindANameWithParentheses(t *testing.T) {
	const line = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 3 4 20 0 5 0 100 1000 10"
	got, err := parse([]byte(line))
	if want := (stat{3 * time.Second, 70 * time.Millisecond, 5}); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parse([]byte("7 (a) S 1")); err == nil {
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
