// Tests of an embedded driver and of jobs under it.

package hvd_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"libhvd/hvd"
)

func newDriver(t *testing.T) *hvd.Driver {
	t.Helper()
	values := map[string]any{"np": 2, "local_hosts": true}
	for key, value := range jobOptions {
		values[key] = value
	}
	d, err := hvd.NewDriver(&hvd.Options{Values: values})
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

func twoHosts() ([]hvd.Host, error) {
	return []hvd.Host{{Name: "one", Slots: 1}, {Name: "two", Slots: 1}}, nil
}

func minute(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(background, time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestADriverInThisProcessRunsAJob(t *testing.T) {
	d := newDriver(t)
	program, err := os.Executable()
	must(t, err)
	must(t, d.SetCommand([]string{program}, []string{"HVD_TEST_ROLE=once"}))
	must(t, d.SetDiscovery(twoHosts))
	var mutex sync.Mutex
	lines := map[string][]string{}
	must(t, d.SetOutput(func(line hvd.Line) {
		mutex.Lock()
		defer mutex.Unlock()
		lines[line.Host] = append(lines[line.Host], line.Text)
	}))
	status, err := d.Status()
	must(t, err)
	equal(t, status.Phase, hvd.PhaseNew)
	expect(t, d.Drain("one", 0, "too early"), hvd.Invalid)
	must(t, d.Start())
	expect(t, d.Start(), hvd.Invalid)
	expect(t, d.Drain("three", time.Second, "it goes"), hvd.Invalid, "three")
	expect(t, d.Scale(1<<40), hvd.Invalid, "1099511627776")
	table, err := d.Describe(hvd.FormatText)
	must(t, err)
	equal(t, strings.Contains(table, "one"), true)
	_, err = d.Describe(99)
	expect(t, err, hvd.Invalid, "99")
	must(t, d.Wait(minute(t)))
	status, err = d.Status()
	must(t, err)
	equal(t, status.Phase, hvd.PhaseSucceeded)
	d.Close()
	equal(t, lines, map[string][]string{"one": {"done sum 2"}, "two": {"done sum 2"}})
	expect(t, d.Start(), hvd.Closed, "driver")
}

// processes starts workers as processes of its own, each with a goroutine that waits for it.
type processes struct {
	driver  *hvd.Driver
	mutex   sync.Mutex
	running map[uint64]*exec.Cmd
	ended   chan uint64
}

func (p *processes) Start(launch hvd.Launch) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	command := exec.Command(program)
	command.Env = append(append(os.Environ(), "HVD_TEST_ROLE=once"), launch.Environment...)
	if err := command.Start(); err != nil {
		return err
	}
	p.mutex.Lock()
	p.running[launch.Worker] = command
	p.mutex.Unlock()
	go func() {
		_ = command.Wait()
		p.mutex.Lock()
		delete(p.running, launch.Worker)
		p.mutex.Unlock()
		_ = p.driver.WorkerExited(launch.Worker, command.ProcessState.ExitCode()&0x1ff)
		p.ended <- launch.Worker
	}()
	return nil
}

func (p *processes) Stop(worker uint64, force bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if command := p.running[worker]; command != nil {
		_ = command.Process.Kill()
	}
}

func TestALauncherOfOnesOwnStartsTheWorkers(t *testing.T) {
	d := newDriver(t)
	must(t, d.SetDiscovery(twoHosts))
	p := &processes{driver: d, running: map[uint64]*exec.Cmd{}, ended: make(chan uint64, 2)}
	must(t, d.SetLauncher(p))
	must(t, d.Start())
	must(t, d.Wait(minute(t)))
	if <-p.ended == <-p.ended {
		t.Error("one worker was started twice")
	}
	d.Close()
	expect(t, d.WorkerExited(1, 0), hvd.Closed)
}

func TestADriversBadInputIsAnError(t *testing.T) {
	_, err := hvd.NewDriver(&hvd.Options{Values: map[string]any{"hosts": "a:4", "min_np": 5, "np": 2}})
	expect(t, err, hvd.Invalid)
	d := newDriver(t)
	expect(t, d.Start(), hvd.Invalid)
	expect(t, d.SetCommand(nil, nil), hvd.Invalid)
	expect(t, d.SetCommand([]string{"a\x00"}, nil), hvd.Invalid, "NUL")
	expect(t, d.SetCommand([]string{"true"}, []string{"no equals sign"}), hvd.Invalid)
	expect(t, d.SetDiscovery(nil), hvd.Invalid)
	expect(t, d.SetLauncher(nil), hvd.Invalid)
	for _, discover := range []func() ([]hvd.Host, error){
		func() ([]hvd.Host, error) { return nil, errors.New("no hosts today") },
		func() ([]hvd.Host, error) { panic("on purpose") },
	} {
		d := newDriver(t)
		must(t, d.SetCommand([]string{"true"}, nil))
		must(t, d.SetDiscovery(discover))
		expect(t, d.Start(), hvd.Unavailable)
	}
	// A job that goes on is stopped.
	must(t, d.SetCommand([]string{"sleep", "60"}, nil))
	must(t, d.SetDiscovery(twoHosts))
	must(t, d.Start())
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	if err := d.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	must(t, d.Stop("enough"))
	expect(t, d.Wait(minute(t)), hvd.JobFailed, "enough")
}
