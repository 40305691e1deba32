// The driver, embedded in a Go program.

package hvd

/*
#include <stdlib.h>
#include "bridge.h"
*/
import "C"

import (
	"context"
	"fmt"
	"runtime/cgo"
	"time"
	"unsafe"
)

// Driver is the elastic driver in one's own process: it discovers hosts, starts one worker per slot, gives
// them ranks generation by generation, notices those that are lost, and says how the job ended.
type Driver struct {
	c *C.hvd_driver // a handle that the library checks
}

// Host is a host and its slots.
type Host struct {
	Name  string
	Slots int
}

// Launch is a worker to start.
type Launch struct {
	Worker      uint64
	Host        string
	Slot        int
	Environment []string // "NAME=value"; must reach it: the driver's address, the worker's identity, the job's secret
}

// Launcher starts workers instead of the local launcher. It is called from one thread; ends of workers are
// reported with [Driver.WorkerExited].
type Launcher interface {
	// Start starts a worker. An error counts as a failure of the slot.
	Start(launch Launch) error
	// Stop asks for its end: politely, or at once.
	Stop(worker uint64, force bool)
}

// Line is what a worker of the local launcher printed.
type Line struct {
	Rank   int // -1 before the first generation
	Host   string
	Slot   int
	Stderr bool
	Text   string
}

// NewDriver makes a driver with options np, min_np, max_np, hosts, discovery_script ...; it does nothing
// before Start.
func NewDriver(options *Options) (*Driver, error) {
	o, free, err := options.open()
	if err != nil {
		return nil, err
	}
	defer free()
	d := &Driver{}
	if err := check(func(e *C.hvd_error) C.hvd_status { return C.hvd_driver_create(o, &d.c, e) }); err != nil {
		return nil, err
	}
	return d, nil
}

// Close stops the job if it runs, ends what it started and frees the driver. Not from one of its callbacks.
func (d *Driver) Close() {
	if d != nil {
		C.hvd_driver_destroy(d.c)
	}
}

func (d *Driver) call(function func(e *C.hvd_error) C.hvd_status) error {
	if d == nil {
		return newError(Invalid, "the driver is nil")
	}
	return check(function)
}

// cStrings is an array of C strings that ends with NULL.
func cStrings(what string, texts []string) (**C.char, func(), error) {
	var frees []func()
	free := func() {
		for _, f := range frees {
			f()
		}
	}
	size := C.size_t(len(texts)+1) * C.size_t(unsafe.Sizeof(uintptr(0)))
	array := C.calloc(1, size)
	frees = append(frees, func() { C.free(array) })
	list := unsafe.Slice((**C.char)(array), len(texts)+1)
	for i, text := range texts {
		c, freeText, err := cString(what, text)
		if err != nil {
			free()
			return nil, nil, err
		}
		frees = append(frees, freeText)
		list[i] = c
	}
	return &list[0], free, nil
}

// SetCommand is the program that the local launcher starts for each worker, with "NAME=value" strings added
// to this process's environment.
func (d *Driver) SetCommand(arguments, environment []string) error {
	argv, free, err := cStrings("argument", arguments)
	if err != nil {
		return err
	}
	defer free()
	envp, freeEnvironment, err := cStrings("environment", environment)
	if err != nil {
		return err
	}
	defer freeEnvironment()
	return d.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_driver_set_command(d.c, argv, envp, e) })
}

// SetDiscovery gives hosts by a function instead of options hosts or discovery_script. Called every
// discovery_interval from a thread of its own. An error (or a panic) is fatal at the first call, later it is
// tried again.
func (d *Driver) SetDiscovery(discover func() ([]Host, error)) error {
	if discover == nil {
		return newError(Invalid, "discover is nil")
	}
	return d.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvdgo_set_discovery(d.c, C.uintptr_t(cgo.NewHandle(discover)), e)
	})
}

// SetLauncher starts and stops workers by this launcher instead of the local one.
func (d *Driver) SetLauncher(launcher Launcher) error {
	if launcher == nil {
		return newError(Invalid, "launcher is nil")
	}
	return d.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvdgo_set_launcher(d.c, C.uintptr_t(cgo.NewHandle(launcher)), e)
	})
}

// SetOutput takes the lines that workers of the local launcher print. Called from one thread.
func (d *Driver) SetOutput(output func(Line)) error {
	if output == nil {
		return newError(Invalid, "output is nil")
	}
	return d.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvdgo_set_output(d.c, C.uintptr_t(cgo.NewHandle(output)), e)
	})
}

// WorkerExited reports the end of a worker that a launcher of one's own started: 0 to 255, or 256 + the
// signal's number.
func (d *Driver) WorkerExited(worker uint64, exitStatus int) error {
	return d.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvd_driver_worker_exited(d.c, C.uint64_t(worker), C.int32_t(exitStatus), e)
	})
}

// Start starts listening, discovery and workers, and returns.
func (d *Driver) Start() error {
	return d.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_driver_start(d.c, e) })
}

// Wait waits until the job has ended: nil if it succeeded, [JobFailed] with the sentence that says why. When
// the context ends first, so does the wait; the job goes on.
func (d *Driver) Wait(ctx context.Context) error {
	done := make(chan error, 1)
	finished, finish := context.WithCancel(ctx)
	defer finish()
	go func() {
		for { // in turns, so that nothing is left behind when the context ends
			err := d.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_driver_wait(d.c, C.HVD_SECOND, e) })
			if e, ok := err.(*Error); !ok || e.Status != Timeout || finished.Err() != nil {
				done <- err
				return
			}
		}
	}()
	select {
	case err := <-done:
		if ctx.Err() != nil {
			return ended(ctx, "wait for the job")
		}
		return err
	case <-ctx.Done():
		return ended(ctx, "wait for the job")
	}
}

// Stop ends the job and returns at once. Called again, it kills what is left.
func (d *Driver) Stop(reason string) error {
	text, free, err := cString("reason", reason)
	if err != nil {
		return err
	}
	defer free()
	return d.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_driver_stop(d.c, text, e) })
}

// Phase is what a job is doing.
type Phase int32

// Phases of a job.
const (
	PhaseNew       Phase = C.HVD_PHASE_NEW
	PhaseForming   Phase = C.HVD_PHASE_FORMING
	PhaseRunning   Phase = C.HVD_PHASE_RUNNING
	PhaseEnding    Phase = C.HVD_PHASE_ENDING
	PhaseSucceeded Phase = C.HVD_PHASE_SUCCEEDED
	PhaseFailed    Phase = C.HVD_PHASE_FAILED
)

// JobStatus is how a job is.
type JobStatus struct {
	Phase            Phase
	Size             int // members of the current generation
	Workers          int // alive, members or not
	Slots            int // usable slots discovered now
	Resets           int // generations formed after the first
	Generation       uint64
	MembershipEpoch  uint64
	HostsBlocked     int
	Port             int     // listening port, 0 before the start
	Sentence         string  // how the job ended, or what it waits for
	Stall            string  // newest report of an operation that some ranks do not come to
	TryAgain         bool    // failed, and it may do better at another time
	Stalled          int     // operations that wait for ranks for longer than stall_warning
	Goodput          float64 // time in training that commits have kept, over wall time: 0 to 1; -1: not known
	CommitsPerSecond float64 // of the fastest member, over the last ten seconds
}

// Status tells how the job is.
func (d *Driver) Status() (JobStatus, error) {
	s := C.hvd_driver_status_info{struct_size: C.sizeof_hvd_driver_status_info}
	if err := d.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_driver_get_status(d.c, &s, e) }); err != nil {
		return JobStatus{}, err
	}
	return JobStatus{Phase(s.phase), int(s.size), int(s.workers), int(s.slots), int(s.resets), uint64(s.generation),
		uint64(s.membership_epoch), int(s.hosts_blocked), int(s.port), text(s.sentence[:]), text(s.stall[:]), s.try_again != 0,
		int(s.stalled), float64(s.goodput), float64(s.commits_per_second)}, nil
}

// Format is how [Driver.Describe] tells of a job.
type Format int32

// Formats of a description: for people, and for programs (docs/observability.md).
const (
	FormatText        Format = C.HVD_DRIVER_FORMAT_TEXT
	FormatJSON        Format = C.HVD_DRIVER_FORMAT_JSON
	FormatOpenMetrics Format = C.HVD_DRIVER_FORMAT_OPENMETRICS
	FormatLine        Format = C.HVD_DRIVER_FORMAT_LINE
)

// owned is a text that the library gives away.
func owned(c *C.char) string {
	defer C.hvd_free(unsafe.Pointer(c))
	return C.GoString(c)
}

// Describe tells all that is known of the job: hosts, workers, generations and their recoveries, goodput. No
// secrets are in it.
func (d *Driver) Describe(format Format) (string, error) {
	var c *C.char
	err := d.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvd_driver_describe(d.c, C.hvd_driver_format(format), &c, e)
	})
	if err != nil {
		return "", err
	}
	return owned(c), nil
}

// Drain has a host's workers leave at their next commit, at most within this time (0: option leave_timeout),
// and gives it no others.
func (d *Driver) Drain(host string, within time.Duration, reason string) error {
	name, free, err := cString("host", host)
	if err != nil {
		return err
	}
	defer free()
	why, freeReason, err := cString("reason", reason)
	if err != nil {
		return err
	}
	defer freeReason()
	return d.call(func(e *C.hvd_error) C.hvd_status {
		return C.hvd_driver_drain(d.c, name, C.int64_t(within), why, e)
	})
}

// Undrain lets a drained host be used again.
func (d *Driver) Undrain(host string) error {
	name, free, err := cString("host", host)
	if err != nil {
		return err
	}
	defer free()
	return d.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_driver_undrain(d.c, name, e) })
}

// Scale sets the most workers from now on, from min_np to max_np.
func (d *Driver) Scale(size int) error {
	if size != int(int32(size)) {
		return newError(Invalid, "a job of %d workers: expected a number of 32 bits", size)
	}
	return d.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_driver_scale(d.c, C.int32_t(size), e) })
}

// Command asks a driver that runs elsewhere as its operator, as hvdrun ctl does: options address_file, or
// driver and secret, name it. Verb "help" lists the verbs. The wait is at most this long (0: 10 s).
func Command(options *Options, verb, argument string, within time.Duration) (string, error) {
	o, free, err := options.open()
	if err != nil {
		return "", err
	}
	defer free()
	v, freeVerb, err := cString("verb", verb)
	if err != nil {
		return "", err
	}
	defer freeVerb()
	a, freeArgument, err := cString("argument", argument)
	if err != nil {
		return "", err
	}
	defer freeArgument()
	var c *C.char
	err = check(func(e *C.hvd_error) C.hvd_status {
		return C.hvd_driver_command(o, v, a, C.int64_t(within), &c, e)
	})
	if err != nil {
		return "", err
	}
	return owned(c), nil
}

// caught runs a callback; a panic is a failure, as it must not unwind the library's frames.
func caught(function func() error) (result C.int32_t) {
	defer func() {
		if recover() != nil {
			result = 1
		}
	}()
	if function() != nil {
		return 1
	}
	return 0
}

//export hvdgoDiscover
func hvdgoDiscover(handle C.uintptr_t, add C.hvd_add_host_fn, sink unsafe.Pointer) C.int32_t {
	discover := cgo.Handle(handle).Value().(func() ([]Host, error))
	return caught(func() error {
		hosts, err := discover()
		if err != nil {
			return err
		}
		for _, host := range hosts {
			name, free, err := cString("host", host.Name)
			if err != nil {
				return err
			}
			refused := C.hvdgo_add_host(add, sink, name, C.int32_t(host.Slots)) != 0
			free()
			if refused {
				return fmt.Errorf("host %q with %d slots was refused", host.Name, host.Slots)
			}
		}
		return nil
	})
}

//export hvdgoStart
func hvdgoStart(handle C.uintptr_t, launch *C.hvd_launch) C.int32_t {
	launcher := cgo.Handle(handle).Value().(Launcher)
	l := Launch{Worker: uint64(launch.worker), Host: C.GoString(launch.host), Slot: int(launch.slot)}
	for entry := launch.environment; entry != nil && *entry != nil; {
		l.Environment = append(l.Environment, C.GoString(*entry))
		entry = (**C.char)(unsafe.Add(unsafe.Pointer(entry), unsafe.Sizeof(*entry)))
	}
	return caught(func() error { return launcher.Start(l) })
}

//export hvdgoStop
func hvdgoStop(handle C.uintptr_t, worker C.uint64_t, force C.int32_t) {
	defer dropPanic()
	cgo.Handle(handle).Value().(Launcher).Stop(uint64(worker), force != 0)
}

//export hvdgoLine
func hvdgoLine(handle C.uintptr_t, rank C.int32_t, host *C.char, slot, stderr C.int32_t, line *C.char) {
	defer dropPanic()
	output := cgo.Handle(handle).Value().(func(Line))
	output(Line{int(rank), C.GoString(host), int(slot), stderr != 0, C.GoString(line)})
}
