// Tests of whole jobs with workers written in Go.

package hvd_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"libhvd/hvd"
)

// Real jobs: hvdrun (or a driver) starts this test program again, once a worker, in a role.
func work(role string) {
	roles := map[string]func() error{"elastic": train, "collectives": collectives, "failures": failures, "once": once}
	if err := roles[role](); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// Short times where a busy machine does not look like a fault.
var jobOptions = map[string]any{
	"discovery_interval": "0.05", "restart_delay_min": "0.05", "restart_delay_max": "1", "join_settle": "1",
	"elastic_timeout": "40", "blocklist_after": "100", "stop_grace": "2",
}

type job struct {
	t         *testing.T
	directory string
	process   *exec.Cmd
	lines     chan string
	seen      []string
}

func startJob(t *testing.T, role, hosts string, flags ...string) *job {
	j := &job{t: t, directory: t.TempDir(), lines: make(chan string, 100000)}
	j.setHosts(hosts)
	script := filepath.Join(j.directory, "discover.sh")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\nexec cat '"+j.directory+"/hosts'\n"), 0o755))
	must(t, syscall.Mkfifo(filepath.Join(j.directory, "fifo"), 0o600))
	for key, value := range jobOptions {
		flags = append(flags, "--set", fmt.Sprintf("%s=%v", key, value))
	}
	program, err := os.Executable()
	must(t, err)
	hvdrun := "hvdrun"
	if bin := os.Getenv("HVD_TEST_BIN"); bin != "" {
		hvdrun = filepath.Join(bin, hvdrun)
	}
	j.process = exec.Command(hvdrun, append(flags, "--local-hosts", "--host-discovery-script", script, "--", program)...)
	j.process.Env = append(os.Environ(), "HVD_TEST_ROLE="+role, "HVD_TEST_DIR="+j.directory)
	j.process.Stderr = os.Stderr
	output, err := j.process.StdoutPipe()
	must(t, err)
	must(t, j.process.Start())
	t.Cleanup(func() { // hvdrun ends its workers when it is asked to end
		if j.process.ProcessState == nil {
			_ = j.process.Process.Signal(syscall.SIGTERM)
			_ = j.process.Wait()
		}
	})
	go func() {
		defer close(j.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			j.lines <- scanner.Text()
		}
	}()
	return j
}

func (j *job) setHosts(hosts string) {
	path := filepath.Join(j.directory, "hosts")
	must(j.t, os.WriteFile(path+".new", []byte(hosts+"\n"), 0o600))
	must(j.t, os.Rename(path+".new", path))
}

// wait gives what the pattern's groups hold, in the first line that fits of those not seen before.
func (j *job) wait(pattern string) []string {
	j.t.Helper()
	wanted, deadline := regexp.MustCompile(pattern), time.After(60*time.Second)
	for {
		select {
		case line, open := <-j.lines:
			if !open {
				j.t.Fatalf("the job has ended while waiting for %q\n%s", pattern, strings.Join(j.seen, "\n"))
			}
			j.seen = append(j.seen, line)
			if groups := wanted.FindStringSubmatch(line); groups != nil {
				return groups
			}
		case <-deadline:
			j.t.Fatalf("deadline while waiting for %q\n%s", pattern, strings.Join(j.seen, "\n"))
		}
	}
}

// finish waits for the job's end, which must be a success.
func (j *job) finish() {
	j.t.Helper()
	for line := range j.lines {
		j.seen = append(j.seen, line)
	}
	if err := j.process.Wait(); err != nil {
		j.t.Fatalf("%v\n%s", err, strings.Join(j.seen, "\n"))
	}
}

func (j *job) matching(pattern string) (lines []string) {
	for _, line := range j.seen {
		if regexp.MustCompile(pattern).MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

type steps []int64

func (s *steps) MarshalBinary() (data []byte, err error) {
	for _, step := range *s {
		data = binary.LittleEndian.AppendUint64(data, uint64(step))
	}
	return data, nil
}

func (s *steps) UnmarshalBinary(data []byte) error {
	*s = nil
	for ; len(data) >= 8; data = data[8:] {
		*s = append(*s, int64(binary.LittleEndian.Uint64(data)))
	}
	return nil
}

// train goes on until the test opens the gate "stop": all stop at the same step, as they agree on who has
// seen it.
func train() error {
	worker, err := hvd.Init(background, nil)
	if err != nil {
		return err
	}
	defer worker.Close()
	events, err := worker.Events(hvd.EventAll)
	if err != nil {
		return err
	}
	state, err := worker.NewState()
	if err != nil {
		return err
	}
	weights, step, past := make([]float32, 1000), int64(0), &steps{}
	if err := errors.Join(state.AddTensor("weights", hvd.Of(weights)), hvd.AddValue(state, "step", &step),
		state.AddObject("history", past)); err != nil {
		return err
	}
	state.OnReset(func(context.Context) error {
		fmt.Printf("reset step %d size %d\n", step, worker.Size())
		return nil
	})
	ctx, cancel := context.WithTimeout(background, 2*time.Minute) // with one, waits are made of goroutines
	defer cancel()
	err = state.Run(ctx, func(ctx context.Context) error {
		fmt.Printf("train rank %d size %d step %d pid %d\n", worker.Rank(), worker.Size(), step, os.Getpid())
		for {
			gradient, stop := make([]float32, len(weights)), []int32{0}
			for i := range gradient {
				gradient[i] = 1
			}
			if _, err := os.Stat(os.Getenv("HVD_TEST_DIR") + "/stop"); err == nil {
				stop[0] = 1
			}
			stopped, err := worker.StartAllreduce(ctx, "stop", hvd.Of(stop), hvd.Of(stop), hvd.Max)
			if err != nil {
				return err
			}
			if err := worker.Allreduce(ctx, "gradient", hvd.Of(gradient), hvd.Of(gradient), hvd.Average); err != nil {
				return err
			}
			if err := stopped.Wait(ctx); err != nil {
				return err
			}
			if stop[0] != 0 {
				return nil
			}
			for i := range weights {
				weights[i] += gradient[i]
			}
			step++
			*past = append(*past, step)
			if worker.Rank() == 0 && step%10 == 0 {
				fmt.Printf("at step %d size %d\n", step, worker.Size())
			}
			if err := state.Commit(); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	for i, w := range weights {
		if w != float32(step) {
			return fmt.Errorf("weight %d is %v after %d steps", i, w, step)
		}
	}
	for i, s := range *past {
		if s != int64(i)+1 {
			return fmt.Errorf("step %d is %d in the history", i, s)
		}
	}
	recoveries, err := worker.Recoveries()
	if err != nil {
		return err
	}
	if err := worker.Shutdown(background); err != nil {
		return err
	}
	worker.Close()
	told := 0
	for event := range events.C {
		if event.Kind == hvd.EventRecovered {
			told++
		}
	}
	fmt.Printf("done step %d recoveries %d told %d\n", step, len(recoveries), told)
	return nil
}

func TestAJobSurvivesAKilledWorkerAndTakesANewOneIn(t *testing.T) {
	j := startJob(t, "elastic", "localhost:3", "-np", "3", "--min-np", "2", "--max-np", "4")
	pid, err := strconv.Atoi(j.wait(`train rank 1 .* pid (\d+)`)[1])
	must(t, err)
	j.wait("at step")
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	j.wait("reset step [1-9]")
	j.wait(`at step \d+ size 3`)
	j.setHosts("localhost:4")
	j.wait(`at step \d+ size 4`)
	must(t, os.WriteFile(filepath.Join(j.directory, "stop"), nil, 0o600))
	j.finish()
	done := j.matching("done step")
	if len(done) != 4 {
		t.Fatalf("%d workers were done: %q", len(done), done)
	}
	step := regexp.MustCompile(`step \d+`)
	for _, line := range done {
		equal(t, step.FindString(line), step.FindString(done[0]))
	}
	if j.matching(`recoveries [2-9] told [1-9]`) == nil {
		t.Errorf("nobody recovered twice: %q", done)
	}
}

func check(good bool, format string, arguments ...any) {
	if !good {
		panic(fmt.Sprintf(format, arguments...))
	}
}

// Values of every collective, which depend on the rank.
func collectives() error {
	w, err := hvd.Init(background, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	ok := func(err error) { check(err == nil, "%v", err) }
	rank, size := w.Rank(), w.Size()
	r, n := int64(rank), int64(size)
	sum, product := n*(n-1)/2, int64(1)
	for i := range n {
		product *= i + 1
	}
	for _, c := range []struct {
		reduction hvd.Reduction
		expected  int64
		options   []hvd.Option
	}{
		{hvd.Sum, sum + n, nil}, {hvd.Average, (sum + n) / n, nil}, {hvd.Min, 1, nil}, {hvd.Max, n, nil},
		{hvd.Product, product, nil},
		{hvd.Sum, 2 * (sum + n), []hvd.Option{hvd.Prescale(2), hvd.Priority(3), hvd.Wait(time.Minute)}},
	} {
		x := []int64{r + 1}
		ok(w.Allreduce(background, "x", hvd.Of(x), hvd.Of(x), c.reduction, c.options...))
		check(x[0] == c.expected, "%v gave %d", c, x[0])
	}
	a, b := []int64{r}, []float32{float32(r), 0.5}
	group := []hvd.Tensor{hvd.Of(a), hvd.Of(b)}
	ok(w.GroupedAllreduce(background, "group", group, group, hvd.Sum))
	check(a[0] == sum && b[1] == 0.5*float32(n), "%v %v", a, b)
	large := make([]float32, 1<<20)
	for i := range large {
		large[i] = 1
	}
	ok(w.Allreduce(background, "large", hvd.Of(large), hvd.Of(large), hvd.Sum))
	for _, x := range large {
		check(x == float32(n), "%v", x)
	}
	tensor := []int64{r, r}
	ok(w.Broadcast(background, "broadcast", hvd.Of(tensor), size-1))
	check(tensor[1] == n-1, "%v", tensor)
	object, err := w.BroadcastObject(background, "object", make([]byte, 3+997*(rank&1)), 1)
	ok(err)
	check(len(object) == 1000, "%d", len(object))
	mine := make([]float64, 2*(rank+1)) // rank r gives r + 1 rows
	for i := range mine {
		mine[i] = float64(rank)
	}
	gathered, err := w.Allgather(background, "gather", hvd.Of(mine).Reshape(rank+1, 2))
	ok(err)
	values, err := hvd.Slice[float64](gathered)
	ok(err)
	check(len(values) == size*(size+1) && values[len(values)-1] == float64(n-1) && values[0] == 0, "%v", values)
	share, err := w.Reducescatter(background, "scatter", hvd.Of(make([]int32, 2*size)), hvd.Sum)
	ok(err)
	check(share.Shape()[0] == 2, "%v", share.Shape())
	rows := make([]int64, size)
	for i := range rows {
		rows[i] = r
	}
	exchanged, received, err := w.Alltoall(background, "exchange", hvd.Of(rows))
	ok(err)
	ranks, err := hvd.Slice[int64](exchanged)
	ok(err)
	check(len(ranks) == size && ranks[size-1] == n-1 && received[0] == 1, "%v %v", ranks, received)
	ok(w.Barrier(background, "barrier"))
	pair, err := w.NewProcessSet("pair", hvd.SetRanks, 0, 1)
	ok(err)
	host, err := w.NewProcessSet("host", hvd.SetLocal)
	ok(err)
	x := []int64{1}
	err = w.Allreduce(background, "of two", hvd.Of(x), hvd.Of(x), hvd.Sum, hvd.On(pair))
	if rank < 2 {
		check(err == nil && x[0] == 2, "%v %v", err, x)
	} else {
		check(errors.Is(err, hvd.Invalid), "%v", err)
	}
	ok(w.Barrier(background, "of the host", hvd.On(host)))
	// Operations overlap, in another order on each rank, waited for in many goroutines.
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	for k := range 20 {
		i := (k + 7*rank) % 20
		data := make([]float32, 100)
		for j := range data {
			data[j] = float32(i)
		}
		op, err := w.StartAllreduce(ctx, "async "+strconv.Itoa(i), hvd.Of(data), hvd.Of(data), hvd.Sum)
		ok(err)
		all.Add(1)
		go func() {
			defer all.Done()
			ok(op.Wait(ctx))
			check(data[99] == float32(i*size) && op.Done(), "%d: %v", i, data[99])
		}()
	}
	all.Wait()
	// Rank 0 runs out of data first.
	if rank != 0 {
		x := []float32{1}
		ok(w.Allreduce(background, "without 0", hvd.Of(x), hvd.Of(x), hvd.Average))
		check(x[0] == 1, "%v", x)
	}
	last, err := w.Join(background)
	ok(err)
	check(last != 0, "%d", last)
	fmt.Println("done rank", rank)
	return w.Shutdown(background)
}

func TestEveryCollectiveGivesTheRightValues(t *testing.T) {
	j := startJob(t, "collectives", "localhost:3", "-np", "3")
	j.finish()
	equal(t, len(j.matching("done rank")), 3)
}

// Disagreement and absence are errors on every rank, and the worker stays usable.
func failures() error {
	w, err := hvd.Init(background, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	rank := w.Rank()
	fifo := os.Getenv("HVD_TEST_DIR") + "/fifo"
	x := hvd.Of(make([]float32, 2+rank))
	err = w.Allreduce(background, "lengths", x, x, hvd.Sum)
	check(errors.Is(err, hvd.Mismatch) && strings.Contains(err.Error(), "lengths"), "%v", err)
	if rank == 0 {
		// A deadline ends the operation, cancelling only the wait.
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		one := hvd.Of([]float32{1})
		err = w.Allreduce(ctx, "absent", one, one, hvd.Sum)
		cancel()
		check(errors.Is(err, hvd.Timeout) && errors.Is(err, context.DeadlineExceeded), "%v", err)
		ctx, cancel = context.WithCancel(background)
		data := []float32{5}
		op, err := w.StartAllreduce(ctx, "cancelled", hvd.Of(data), hvd.Of(data), hvd.Sum)
		check(err == nil, "%v", err)
		time.AfterFunc(20*time.Millisecond, cancel)
		err = op.Wait(ctx)
		check(errors.Is(err, context.Canceled) && !op.Done(), "%v", err)
		check(os.WriteFile(fifo, []byte("go"), 0o600) == nil, "fifo")
		check(op.Wait(background) == nil && data[0] == 10, "%v", data)
	} else {
		// In no operation meanwhile: if every rank waited, that would be a mismatch.
		_, err := os.ReadFile(fifo)
		check(err == nil, "%v", err)
		data := hvd.Of([]float32{5})
		err = w.Allreduce(background, "cancelled", data, data, hvd.Sum)
		check(err == nil, "%v", err)
	}
	err = w.Barrier(background, "all is well")
	check(err == nil, "%v", err)
	if rank == 0 {
		// That the barrier is over here does not mean that it is over there.
		_, err := os.ReadFile(fifo)
		check(err == nil, "%v", err)
		// Aborting ends the waits of others.
		op, err := w.StartBarrier(background, "nobody comes")
		check(err == nil, "%v", err)
		waited := make(chan error)
		go func() { waited <- op.Wait(background) }()
		check(w.Abort("enough") == nil, "abort")
		check(errors.Is(<-waited, hvd.Closed), "not closed")
	} else {
		check(os.WriteFile(fifo, []byte("out"), 0o600) == nil, "fifo")
		err := w.Barrier(background, "no one either")
		check(errors.Is(err, hvd.PeerLost), "%v", err)
	}
	fmt.Println("done rank", rank)
	return nil
}

func TestDisagreementAbsenceAndLossAreErrors(t *testing.T) {
	j := startJob(t, "failures", "localhost:2", "-np", "2", "--set", "restart=false")
	j.wait("done rank")
	j.wait("done rank")
}

func once() error {
	w, err := hvd.Init(background, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	x := []int64{1}
	err = w.Run(background, func(ctx context.Context) error {
		return w.Allreduce(ctx, "once", hvd.Of(x), hvd.Of(x), hvd.Sum)
	})
	if err != nil {
		return err
	}
	fmt.Println("done sum", x[0])
	return w.Shutdown(background)
}
