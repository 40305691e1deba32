// Package hvd is elastic distributed training: a job that survives the death, the hanging, the arrival and
// the departure of workers, in the same processes, without losing committed work.
//
// A worker joins the job with [Init], registers what must survive in a [State] and gives its training
// function to [State.Run]. When a peer dies, the last commit is restored and the function is called again
// with whoever is left; when hosts come or go the same happens with live values.
//
//	worker, err := hvd.Init(ctx, nil)
//	...
//	weights, step := make([]float32, 1000), int64(0)
//	state, err := worker.NewState()
//	err = state.AddTensor("weights", hvd.Of(weights))
//	err = hvd.AddValue(state, "step", &step)
//	err = state.Run(ctx, func(ctx context.Context) error {
//		for step < 2000 {
//			gradient := ...
//			err := worker.Allreduce(ctx, "gradient", hvd.Of(gradient), hvd.Of(gradient), hvd.Average)
//			if err != nil {
//				return err
//			}
//			...
//			if step++; step%10 == 0 {
//				if err := state.Commit(); err != nil {
//					return err
//				}
//			}
//		}
//		return nil
//	})
//	err = worker.Shutdown(ctx)
//
// # Memory
//
// Slices are used where they are, without copies. They are pinned ([runtime.Pinner]) for as long as the
// library may touch them: an operation's until it has completed, a state's until the key is removed or the
// state closed. As with any I/O, the program must leave an output alone until the operation has completed.
//
// # Deadlines and cancelling
//
// A context's deadline is the operation's own time-out: when it passes, the operation ends with an error that
// is both [Timeout] and [context.DeadlineExceeded]. Cancelling gives the wait up: the call returns at once,
// while the operation itself, which the other ranks have agreed on, goes on; its memory stays pinned until it
// has completed, and its output is undefined until then.
//
// # Misuse
//
// Wrong arguments, calls on what was closed, concurrent use of a state and calls in a forked child are errors
// ([Invalid], [Closed]), never crashes. A panic in a callback is an error of the call that it belongs to
// ([CallbackFailed]); in a log, event or output function, which no call belongs to, it is dropped.
package hvd

/*
#cgo pkg-config: hvd
#include <stdlib.h>
#include "bridge.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// Version of the library that is loaded: "major.minor.patch".
func Version() string { return C.GoString(C.hvd_version()) }

// Status says what to do next. It is an error that [errors.Is] finds in any error of this package:
//
//	if errors.Is(err, hvd.PeerLost) ...
type Status int32

// Statuses. Their values are those of hvd.h.
const (
	PeerLost       Status = C.HVD_PEER_LOST       // a worker of this generation is gone: restore the last commit, rejoin
	HostsUpdated   Status = C.HVD_HOSTS_UPDATED   // hosts were added or removed: keep live values, rejoin
	Mismatch       Status = C.HVD_MISMATCH        // ranks disagree about an operation: a bug in the program
	Invalid        Status = C.HVD_INVALID         // bad argument or bad order of calls: a bug in the program
	Timeout        Status = C.HVD_TIMEOUT         // the deadline passed; the message says who and what was waited for
	Closed         Status = C.HVD_CLOSED          // the worker was shut down or aborted
	Removed        Status = C.HVD_REMOVED         // this worker has no place in the job any more
	DriverLost     Status = C.HVD_DRIVER_LOST     // the driver can't be reached or is gone
	Refused        Status = C.HVD_REFUSED         // the driver refused this worker
	Unavailable    Status = C.HVD_UNAVAILABLE     // a backend, file or system resource can't be had
	Unsupported    Status = C.HVD_UNSUPPORTED     // no backend in use supports this dtype, memory or operation
	CallbackFailed Status = C.HVD_CALLBACK_FAILED // a callback of the program reported failure
	JobFailed      Status = C.HVD_JOB_FAILED      // the job ended in failure
	Internal       Status = C.HVD_INTERNAL        // a defect in the library, or out of memory
)

// Error is the status's name in hvd.h.
func (s Status) Error() string { return C.GoString(C.hvd_status_name(C.hvd_status(s))) }

// Error is a failure, with what is known about it.
type Error struct {
	Status     Status
	Rank       int    // that is to blame, or -1
	Generation uint64 // in which it happened, or 0
	VendorCode int64  // errno, MPI's or NCCL's code, or 0
	Backend    string // that reported it, or ""
	Message    string // what, where, which value, what was expected
	cause      error  // a context's error, or a callback's
}

func (e *Error) Error() string { return e.Status.Error() + ": " + e.Message }

// Is tells whether target is this error's Status.
func (e *Error) Is(target error) bool {
	status, ok := target.(Status)
	return ok && status == e.Status
}

// Unwrap gives the context's error, if that ended the wait, or the callback's error.
func (e *Error) Unwrap() error { return e.cause }

func newError(status Status, format string, arguments ...any) *Error {
	return &Error{Status: status, Rank: -1, Message: fmt.Sprintf(format, arguments...)}
}

// text of a fixed field of a C struct.
func text(field []C.char) string {
	for i, c := range field {
		if c == 0 {
			return C.GoStringN(&field[0], C.int(i))
		}
	}
	return ""
}

// failure makes a Go error of a status that is not HVD_OK.
func failure(status C.hvd_status, e *C.hvd_error) error {
	return &Error{
		Status: Status(status), Rank: int(e.rank), Generation: uint64(e.generation), VendorCode: int64(e.vendor_code),
		Backend: text(e.backend[:]), Message: text(e.message[:]),
	}
}

// check calls a function of the C library with a place for its error.
func check(function func(e *C.hvd_error) C.hvd_status) error {
	e := C.hvd_error{struct_size: C.sizeof_hvd_error}
	if status := function(&e); status != C.HVD_OK {
		return failure(status, &e)
	}
	return nil
}

// cString is freed by C.free; texts with NUL are refused, as C would cut them.
func cString(what, text string) (*C.char, func(), error) {
	for i := range len(text) {
		if text[i] == 0 {
			return nil, nil, newError(Invalid, "%s %q has a NUL byte: expected none", what, text)
		}
	}
	c := C.CString(text)
	return c, func() { C.free(unsafe.Pointer(c)) }, nil
}

// nanoseconds, at least one, so that a wait of nothing is not taken for the default; at most a year.
func nanoseconds(d time.Duration) C.int64_t { return C.int64_t(min(max(1, d), 365*24*time.Hour)) }

// left until the context's deadline: 0 if it has none.
func left(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Millisecond, time.Until(deadline))
	}
	return 0
}

// ended is the error of a wait that the context ended.
func ended(ctx context.Context, what string) error {
	status := Closed
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		status = Timeout
	}
	e := newError(status, "%s: %v", what, context.Cause(ctx))
	e.cause = ctx.Err()
	return e
}
