// A worker: joining a job, the training loop, leaving.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"context"
	"sync"
	"time"
)

// Worker is one worker of a job. It may be used from any goroutine, and several may live in one process.
type Worker struct {
	c       *C.hvd_context      // a handle that the library checks: it may be used at any time, also when it is closed
	mutex   sync.Mutex          // guards what follows
	pending map[*Op]struct{}    // operations whose memory is pinned
	states  map[*State]struct{} // whose memory is pinned
	closed  bool                // there are neither any more
}

// Init joins the job as the environment says (hvdrun sets it) and waits until this worker is a member of a
// generation, at most option init_timeout and the context's deadline. Without a job it is alone: rank 0 of 1.
// options may be nil.
func Init(ctx context.Context, options *Options) (*Worker, error) {
	if err := ctx.Err(); err != nil {
		return nil, ended(ctx, "init")
	}
	o, free, err := options.open()
	if err != nil {
		return nil, err
	}
	defer free()
	w := &Worker{pending: map[*Op]struct{}{}, states: map[*State]struct{}{}}
	if err := check(func(e *C.hvd_error) C.hvd_status { return C.hvd_context_create(o, &w.c, e) }); err != nil {
		return nil, err
	}
	timeout := C.int64_t(C.HVD_DEFAULT_TIMEOUT)
	if d := left(ctx); d > 0 {
		timeout = nanoseconds(d)
	}
	stop := context.AfterFunc(ctx, func() { _ = w.Abort("init was cancelled") })
	err = check(func(e *C.hvd_error) C.hvd_status { return C.hvd_connect(w.c, timeout, e) })
	if !stop() && err == nil { // cancelled at the last moment
		err = newError(Closed, "init was cancelled")
	}
	if err != nil {
		C.hvd_destroy(w.c)
		if ctx.Err() != nil {
			return nil, ended(ctx, "init")
		}
		return nil, err
	}
	workers.Store(w, nil)
	return w, nil
}

// Workers that are open: what they have pinned must not be collected, and the library knows where it is.
var workers sync.Map

// call runs a function on the handle.
func (w *Worker) call(function func(c *C.hvd_context, e *C.hvd_error) C.hvd_status) error {
	if w == nil {
		return newError(Invalid, "the worker is nil")
	}
	return check(func(e *C.hvd_error) C.hvd_status { return function(w.c, e) })
}

// Shutdown says that this worker is done, with success, and leaves; waits until every member is done, at most
// option shutdown_timeout and the context's deadline. If the last run failed it leaves without saying that it
// is done. After it every call is [Closed]. Cancelling the context ends the wait as [Worker.Abort] does.
func (w *Worker) Shutdown(ctx context.Context) error {
	timeout := C.int64_t(C.HVD_DEFAULT_TIMEOUT)
	if d := left(ctx); d > 0 {
		timeout = nanoseconds(d)
	}
	stop := context.AfterFunc(ctx, func() {
		if ctx.Err() == context.Canceled {
			_ = w.Abort("shutdown was cancelled")
		}
	})
	defer stop()
	return w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_shutdown(c, timeout, e) })
}

// Leave asks that this worker may go, and returns at once: at the next commit or check the others go on
// without it and repeat nothing, [State.Run] returns nil here, and [Worker.HasLeft] is true. Past the
// time-out (0: option leave_timeout) the worker is lost. A goroutine that has SIGTERM from signal.Notify may
// call it.
func (w *Worker) Leave(timeout time.Duration) error {
	within := C.int64_t(C.HVD_DEFAULT_TIMEOUT)
	if timeout > 0 {
		within = nanoseconds(timeout)
	}
	return w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_leave(c, within, e) })
}

// HasLeft says whether this worker has gone so: its training is not complete then.
func (w *Worker) HasLeft() bool { return w != nil && C.hvd_has_left(w.c) != 0 }

// Abort closes at once: every pending and later call is [Closed]. To the job this is the loss of a worker.
func (w *Worker) Abort(reason string) error {
	text, free, err := cString("reason", reason)
	if err != nil {
		return err
	}
	defer free()
	return w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_abort(c, text, e) })
}

// Close frees the worker and its states; it aborts it if it was not shut down. Calls on it that are running
// end as [Closed]. It is not for an object's methods: those end the worker by [Worker.Abort].
func (w *Worker) Close() {
	if w == nil {
		return
	}
	C.hvd_destroy(w.c)
	// Every operation has ended with it.
	w.mutex.Lock()
	for op := range w.pending {
		op.pinner.Unpin()
	}
	clear(w.pending)
	w.closed = true
	states := w.states
	w.states = map[*State]struct{}{}
	w.mutex.Unlock()
	for state := range states {
		state.Close()
	}
	workers.Delete(w)
}

// Membership is the place of a worker in the current generation.
type Membership struct {
	Rank, Size           int    // among all workers
	LocalRank, LocalSize int    // among the workers of this host
	CrossRank, CrossSize int    // among the workers with the same local rank on all hosts
	Generation           uint64 // counts from 1; 0 for a worker that is alone without a driver
	MembershipEpoch      uint64 // changes of hosts that this generation takes into account
	Worker               uint64 // identity of this worker, kept through all generations
	Term                 uint64 // of the driver, from 1 on: grows when another one takes over; 0: nobody takes over
}

// Membership never blocks.
func (w *Worker) Membership() (Membership, error) {
	m := C.hvd_membership_info{struct_size: C.sizeof_hvd_membership_info}
	err := w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_get_membership(c, &m, e) })
	if err != nil {
		return Membership{Rank: -1}, err
	}
	return Membership{
		int(m.rank), int(m.size), int(m.local_rank), int(m.local_size), int(m.cross_rank), int(m.cross_size),
		uint64(m.generation), uint64(m.membership_epoch), uint64(m.worker),
		uint64(m.term),
	}, nil
}

// Rank among all workers; -1 if the worker is closed.
func (w *Worker) Rank() int {
	m, _ := w.Membership()
	return m.Rank
}

// Size is the number of workers; 0 if the worker is closed.
func (w *Worker) Size() int {
	m, _ := w.Membership()
	return m.Size
}

// Backend is the backend in use.
type Backend struct {
	Name        string // "gloo"; "self" for a worker that is alone
	Version     string // of the library underneath
	Path        string // file of the module
	Detail      string // interface, address
	Dtypes      uint64 // bit 1 << dtype for each supported one
	Collectives uint64 // bit 1 << collective for each supported one
}

// Backend tells of the backend in use.
func (w *Worker) Backend() (Backend, error) {
	b := C.hvd_backend_info{struct_size: C.sizeof_hvd_backend_info}
	err := w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_get_backend(c, &b, e) })
	if err != nil {
		return Backend{}, err
	}
	return Backend{text(b.name[:]), text(b.version[:]), text(b.path[:]), text(b.detail[:]), uint64(b.dtypes),
		uint64(b.collectives)}, nil
}

// Memory is where a tensor lies.
type Memory int32

// Kinds of memory.
const (
	HostMemory Memory = C.HVD_MEMORY_HOST // the process's own
	CUDAMemory Memory = C.HVD_MEMORY_CUDA // a CUDA device's
)

// Collective is what an operation does.
type Collective int32

// Collectives.
const (
	BroadcastCollective     Collective = C.HVD_COLLECTIVE_BROADCAST
	AllreduceCollective     Collective = C.HVD_COLLECTIVE_ALLREDUCE
	AllgatherCollective     Collective = C.HVD_COLLECTIVE_ALLGATHER
	BarrierCollective       Collective = C.HVD_COLLECTIVE_BARRIER
	ReducescatterCollective Collective = C.HVD_COLLECTIVE_REDUCESCATTER
	AlltoallCollective      Collective = C.HVD_COLLECTIVE_ALLTOALL
	JoinCollective          Collective = C.HVD_COLLECTIVE_JOIN
)

// BackendReport is a backend to choose from: built in, or a module that was found.
type BackendReport struct {
	Name         string // as the module says; of one that can't be loaded, as its file says
	Version      string // of the library underneath
	Path         string // file of the module; "" for what is built in
	Usable       bool   // it loads and says that it can serve here
	ABIVersion   uint32 // of backend.h that it and the library agree on; 0 if none
	Memories     uint64 // bit 1 << memory for each supported one
	Dtypes       uint64 // bit 1 << dtype
	Collectives  uint64 // bit 1 << collective
	Local        bool   // fast inside a host by itself
	MaxInstances int    // workers in one process that can use it; 0: any number
	Reason       string // why it is not usable
}

// Backends tells what there is to choose from, in the order in which it is searched. options may be nil. The
// modules are loaded for it, and stay loaded.
func Backends(options *Options) ([]BackendReport, error) {
	o, free, err := options.open()
	if err != nil {
		return nil, err
	}
	defer free()
	var count C.size_t
	if err := check(func(e *C.hvd_error) C.hvd_status { return C.hvd_get_available_backend_count(o, &count, e) }); err != nil {
		return nil, err
	}
	reports := make([]BackendReport, count)
	for i := range reports {
		r := C.hvd_available_backend_info{struct_size: C.sizeof_hvd_available_backend_info}
		err := check(func(e *C.hvd_error) C.hvd_status { return C.hvd_get_available_backend(o, C.size_t(i), &r, e) })
		if err != nil {
			return nil, err
		}
		reports[i] = BackendReport{text(r.name[:]), text(r.version[:]), text(r.path[:]), r.usable != 0, uint32(r.abi_version),
			uint64(r.memories), uint64(r.dtypes), uint64(r.collectives), r.local != 0, int(r.max_instances), text(r.reason[:])}
	}
	return reports, nil
}

// BackendChoice tells which backend serves an operation in the current generation, and why this one. Never
// blocks.
func (w *Worker) BackendChoice(memory Memory, dtype Dtype, collective Collective) (name, reason string, err error) {
	s := C.hvd_backend_choice_info{struct_size: C.sizeof_hvd_backend_choice_info}
	err = w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status {
		return C.hvd_get_backend_choice(c, C.hvd_memory(memory), C.hvd_dtype(dtype), C.hvd_collective(collective), &s, e)
	})
	return text(s.name[:]), text(s.reason[:]), err
}

// Recovery is one recovery or planned reset of a worker. Phases that did not happen are 0.
type Recovery struct {
	FromGeneration, ToGeneration uint64
	Cause                        Status // PeerLost or HostsUpdated
	FromSize, ToSize             int
	Attempts                     int    // generations tried
	Revision                     uint64 // after the sync
	BeganAt                      int64  // nanoseconds of the monotonic clock when this worker learnt of it
	Detection                    time.Duration
	Abort                        time.Duration
	Restore                      time.Duration
	Forming                      time.Duration
	Connecting                   time.Duration
	Sync                         time.Duration
	Total                        time.Duration
	SyncBytes                    uint64
	Reason                       string
}

// Recoveries of this worker, oldest first (the last 1024).
func (w *Worker) Recoveries() ([]Recovery, error) {
	var count C.size_t
	err := w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_get_recovery_count(c, &count, e) })
	if err != nil {
		return nil, err
	}
	recoveries := make([]Recovery, count)
	for i := range recoveries {
		r := C.hvd_recovery_info{struct_size: C.sizeof_hvd_recovery_info}
		err := w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status {
			return C.hvd_get_recovery(c, C.size_t(i), &r, e)
		})
		if err != nil {
			return nil, err
		}
		recoveries[i] = Recovery{
			FromGeneration: uint64(r.from_generation), ToGeneration: uint64(r.to_generation), Cause: Status(r.cause),
			FromSize: int(r.from_size), ToSize: int(r.to_size), Attempts: int(r.attempts), Revision: uint64(r.revision),
			BeganAt: int64(r.began_at_ns), Detection: time.Duration(r.detection_ns), Abort: time.Duration(r.abort_ns),
			Restore: time.Duration(r.restore_ns), Forming: time.Duration(r.forming_ns), Connecting: time.Duration(r.connecting_ns),
			Sync: time.Duration(r.sync_ns), Total: time.Duration(r.total_ns), SyncBytes: uint64(r.sync_bytes),
			Reason: text(r.reason[:]),
		}
	}
	return recoveries, nil
}

// StartTimeline records what this worker does into a file for ui.perfetto.dev; %w, %h and %p in path stand
// for worker, host and process.
func (w *Worker) StartTimeline(path string) error {
	text, free, err := cString("path", path)
	if err != nil {
		return err
	}
	defer free()
	return w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_timeline_start(c, text, e) })
}

// StopTimeline writes the rest and closes the file.
func (w *Worker) StopTimeline() error {
	return w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_timeline_stop(c, e) })
}
