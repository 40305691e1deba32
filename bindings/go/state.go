// States: what survives a change of generation.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"runtime/cgo"
	"sync"
	"time"
	"unsafe"
)

// State is what must survive: tensors and values in the program's memory, and objects that make bytes of
// themselves. Every rank registers the same keys with the same kinds, dtypes and shapes. It is the memory
// that is registered: write into a slice of a state; a slice that replaces it has to be told
// ([State.SetTensor]).
//
// One goroutine at a time may use it; a second one gets an error.
type State struct {
	worker *Worker
	using  sync.Mutex
	c      *C.hvd_state
	pinned map[string]*runtime.Pinner
	known  map[string]C.hvdgo_tensor // tensors, without their address
	resets []func(ctx context.Context) error
	failed error // what a callback said, in the call that is running
}

// Object is part of a state as bytes, for example an optimizer or a random generator. UnmarshalBinary gets
// what MarshalBinary made, on this or another rank, and must be able to undo a partial load by another load.
type Object interface {
	encoding.BinaryMarshaler
	encoding.BinaryUnmarshaler
}

// NewState makes an empty state.
func (w *Worker) NewState() (*State, error) {
	s := &State{worker: w, pinned: map[string]*runtime.Pinner{}, known: map[string]C.hvdgo_tensor{}}
	err := w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status { return C.hvd_state_create(c, &s.c, e) })
	if err != nil {
		return nil, err
	}
	w.mutex.Lock()
	w.states[s] = struct{}{}
	w.mutex.Unlock()
	return s, nil
}

// Close frees the state, and its memory again. Waits for a call on it that is running: not for use within
// one.
func (s *State) Close() {
	if s == nil {
		return
	}
	s.using.Lock()
	defer s.using.Unlock()
	C.hvd_state_destroy(s.c)
	for _, pinner := range s.pinned {
		pinner.Unpin()
	}
	clear(s.pinned)
	s.worker.mutex.Lock()
	delete(s.worker.states, s)
	s.worker.mutex.Unlock()
}

// call runs a function on the handle, with the state to itself.
func (s *State) call(function func(e *C.hvd_error) C.hvd_status) error {
	if s == nil {
		return newError(Invalid, "the state is nil")
	}
	if !s.using.TryLock() {
		return newError(Invalid, "the state is in use by another call: expected one at a time")
	}
	defer s.using.Unlock()
	s.failed = nil
	err := check(function)
	if e, ok := err.(*Error); ok && e.Status == CallbackFailed && s.failed != nil {
		e.cause = s.failed
		e.Message += ": " + s.failed.Error()
	}
	return err
}

func (s *State) add(key string, memory unsafe.Pointer, function func(key *C.char, e *C.hvd_error) C.hvd_status) error {
	text, free, err := cString("key", key)
	if err != nil {
		return err
	}
	defer free()
	pinner := &runtime.Pinner{}
	if memory != nil {
		pinner.Pin(memory)
	}
	err = s.call(func(e *C.hvd_error) C.hvd_status {
		status := function(text, e)
		if status == C.HVD_OK {
			s.pinned[key] = pinner
		}
		return status
	})
	if err != nil {
		pinner.Unpin()
	}
	return err
}

// AddTensor registers a slice under a key. It stays pinned until the key is removed or the state closed.
func (s *State) AddTensor(key string, t Tensor) error {
	if t.err != nil {
		return t.err
	}
	memory := t.data
	if t.length == 0 {
		memory = nil
	}
	c := t.described()
	return s.add(key, memory, func(text *C.char, e *C.hvd_error) C.hvd_status {
		status := C.hvdgo_add_tensor(s.c, text, &c, e)
		if status == C.HVD_OK {
			s.known[key] = withoutAddress(c)
		}
		return status
	})
}

// SetTensor says that another slice is the memory of a key that AddTensor has registered, of the same dtype
// and shape. Nothing is copied. The next commit takes what it holds then; Restore and Sync write there. The
// old slice is free again.
func (s *State) SetTensor(key string, t Tensor) error {
	if t.err != nil {
		return t.err
	}
	c := t.described()
	return s.setData(key, t.data, t.length, uintptr(c.data), func() error {
		before, isThere := s.known[key]
		if !isThere {
			return newError(Invalid, "the state has no tensor %q: expected one that was added", key)
		}
		if now := withoutAddress(c); now != before {
			return newError(Invalid, "tensor %q is %s: expected %s, as it was", key, told(now), told(before))
		}
		return nil
	})
}

func withoutAddress(c C.hvdgo_tensor) C.hvdgo_tensor {
	c.data = 0
	return c
}

func told(c C.hvdgo_tensor) string {
	where := "host memory"
	if c.memory != C.HVD_MEMORY_HOST {
		where = fmt.Sprintf("device %d", c.device)
	}
	return fmt.Sprintf("%v%v in %s", Dtype(c.dtype), c.shape[:c.ndim], where)
}

// setData tells of other memory. If it is Go's (not NULL) it is pinned, in place of what the key had.
func (s *State) setData(
	key string, memory unsafe.Pointer, length int, address uintptr, fits func() error,
) error {
	text, free, err := cString("key", key)
	if err != nil {
		return err
	}
	defer free()
	pinner := &runtime.Pinner{}
	if memory != nil && length > 0 {
		pinner.Pin(memory)
	}
	var unfit error
	err = s.call(func(e *C.hvd_error) C.hvd_status {
		if unfit = fits(); unfit != nil {
			return C.HVD_OK
		}
		status := C.hvdgo_set_data(s.c, text, C.uintptr_t(address), e)
		if status == C.HVD_OK {
			pinner, s.pinned[key] = s.pinned[key], pinner
		}
		return status
	})
	if pinner != nil {
		pinner.Unpin()
	}
	if unfit != nil {
		return unfit
	}
	return err
}

// AddValue registers a counter, or another value without pointers of at most 65536 bytes.
func AddValue[T any](s *State, key string, value *T) error {
	if value == nil {
		return newError(Invalid, "the value of key %q is nil", key)
	}
	if t := reflect.TypeFor[T](); !isPlain(t) {
		return newError(Invalid, "the value of key %q is a %v, which has pointers: expected numbers", key, t)
	}
	return s.add(key, unsafe.Pointer(value), func(key *C.char, e *C.hvd_error) C.hvd_status {
		return C.hvdgo_add_value(s.c, key, C.uintptr_t(uintptr(unsafe.Pointer(value))), C.size_t(unsafe.Sizeof(*value)), e)
	})
}

func isPlain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8,
		reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64, reflect.Complex64,
		reflect.Complex128:
		return true
	case reflect.Array:
		return isPlain(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !isPlain(t.Field(i).Type) {
				return false
			}
		}
		return true
	}
	return false
}

// What a callback of an object is about.
type registered struct {
	state  *State
	object Object
}

// AddObject registers something that makes bytes of itself and takes them. Its methods are called in the
// goroutine that calls Commit, Restore, Sync or Run.
func (s *State) AddObject(key string, object Object) error {
	if object == nil {
		return newError(Invalid, "the object of key %q is nil", key)
	}
	return s.add(key, nil, func(key *C.char, e *C.hvd_error) C.hvd_status {
		handle := cgo.NewHandle(registered{s, object})
		return C.hvdgo_add_object(s.c, key, C.uintptr_t(handle), e)
	})
}

// AddSampler makes what a sampler has processed part of the state.
func (s *State) AddSampler(key string, sampler *Sampler) error {
	if sampler == nil {
		return newError(Invalid, "the sampler of key %q is nil", key)
	}
	return s.add(key, nil, func(key *C.char, e *C.hvd_error) C.hvd_status {
		return C.hvd_state_add_sampler(s.c, key, sampler.c, e)
	})
}

// Remove forgets a key, and frees its memory again.
func (s *State) Remove(key string) error {
	text, free, err := cString("key", key)
	if err != nil {
		return err
	}
	defer free()
	return s.call(func(e *C.hvd_error) C.hvd_status {
		status := C.hvd_state_remove(s.c, text, e)
		if pinner := s.pinned[key]; status == C.HVD_OK && pinner != nil {
			pinner.Unpin()
			delete(s.pinned, key)
			delete(s.known, key)
		}
		return status
	})
}

// OnReset runs reset after a new generation is formed and synced, before the training function is called
// again (not before its first call), in order of registration.
func (s *State) OnReset(reset func(ctx context.Context) error) { s.resets = append(s.resets, reset) }

// Commit copies everything as the next revision, then checks for changes of hosts. All ranks call it at the
// same point. [HostsUpdated] and [PeerLost] mean that the copy was made, and must be passed on.
func (s *State) Commit() error {
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_state_commit(s.c, e) })
}

// CommitBegin begins a commit that is copied while the program computes: values and objects are saved when it
// returns. Slices of the state must not be written before CommitEnd, or the next commit, Restore or Sync,
// which wait for it.
func (s *State) CommitBegin() error {
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_state_commit_begin(s.c, e) })
}

// CommitEnd waits for what is left of the commit that was begun, and then does what Commit does after its
// copy.
func (s *State) CommitEnd() error {
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_state_commit_end(s.c, e) })
}

// Save is the copy without the check, and without any communication.
func (s *State) Save() error {
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_state_save(s.c, e) })
}

// CheckHostUpdates asks all ranks, at the same point, whether hosts have changed: [HostsUpdated] on all of
// them, or nil.
func (s *State) CheckHostUpdates() error {
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_state_check_host_updates(s.c, e) })
}

// Restore puts back the last commit, bit for bit.
func (s *State) Restore() error {
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_state_restore(s.c, e) })
}

// Sync makes all ranks' state that of the survivor with the highest revision. Run does so for each
// generation.
func (s *State) Sync() error {
	return s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_state_sync(s.c, e) })
}

// StateStatistics is what commits, restores and syncs of a state did.
type StateStatistics struct {
	Revision, Commits, Restores, Syncs uint64
	Bytes                              uint64 // of one commit
	SyncSentBytes, SyncReceivedBytes   uint64
	LastCommit                         time.Duration // of the copy
	WrittenBytes                       uint64        // of tensors and values: what had changed
	ShardBytes, CopyBytes              uint64        // of this rank's ranges, and of those it holds for others
	FedBytes                           uint64        // that this worker had before its first sync
}

// Statistics tells what commits, restores and syncs did.
func (s *State) Statistics() (StateStatistics, error) {
	c := C.hvd_state_info{struct_size: C.sizeof_hvd_state_info}
	if err := s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_state_get_info(s.c, &c, e) }); err != nil {
		return StateStatistics{}, err
	}
	return StateStatistics{uint64(c.revision), uint64(c.commits), uint64(c.restores), uint64(c.syncs), uint64(c.bytes),
		uint64(c.sync_sent_bytes), uint64(c.sync_received_bytes), time.Duration(c.last_commit_ns),
		uint64(c.written_bytes), uint64(c.shard_bytes), uint64(c.copy_bytes), uint64(c.fed_bytes)}, nil
}

// Revision is the number of the last commit: 0 before the first, or if the state is closed.
func (s *State) Revision() uint64 {
	statistics, _ := s.Statistics()
	return statistics.Revision
}

//export hvdgoSave
func hvdgoSave(handle C.uintptr_t, write C.hvd_write_fn, sink unsafe.Pointer) C.int32_t {
	r := cgo.Handle(handle).Value().(registered)
	return r.state.caught("save", func() error {
		data, err := r.object.MarshalBinary()
		if err == nil && len(data) > 0 {
			var pinner runtime.Pinner
			pinner.Pin(unsafe.SliceData(data))
			defer pinner.Unpin()
			address := C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(data))))
			if C.hvdgo_write(write, sink, address, C.size_t(len(data))) != 0 {
				return errors.New("the state can't take the object's bytes")
			}
		}
		return err
	})
}

//export hvdgoLoad
func hvdgoLoad(handle C.uintptr_t, data unsafe.Pointer, size C.size_t) C.int32_t {
	r := cgo.Handle(handle).Value().(registered)
	return r.state.caught("load", func() error {
		// A copy, as Go's memory may outlive the call.
		return r.object.UnmarshalBinary(append([]byte{}, unsafe.Slice((*byte)(data), int(size))...))
	})
}

// caught runs a callback; a panic becomes an error, as it must not unwind the library's frames.
func (s *State) caught(what string, function func() error) (result C.int32_t) {
	defer func() {
		if p := recover(); p != nil {
			s.failed, result = fmt.Errorf("%s: panic: %v", what, p), 1
		}
	}()
	if err := function(); err != nil {
		s.failed = fmt.Errorf("%s: %w", what, err)
		return 1
	}
	return 0
}

// Run calls train until it is complete: sync, train; when a peer is lost restore, rejoin, sync, reset
// functions, train again; when hosts have changed the same without restore. train passes on errors that are
// [PeerLost] or [HostsUpdated]; any other one ends the run, and is what Run returns, or why the job has
// ended.
//
// Cancelling the context takes this worker out of the job, which to the others is the loss of a worker: Run
// returns an error that is the context's.
func (s *State) Run(ctx context.Context, train func(ctx context.Context) error) error {
	if s == nil || train == nil {
		return newError(Invalid, "the state or the training function is nil")
	}
	w := s.worker
	if ctx.Err() != nil {
		return ended(ctx, "run")
	}
	var loop *C.hvd_run_loop
	if err := s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_run_begin(w.c, s.c, &loop, e) }); err != nil {
		return err
	}
	defer func() { C.hvd_run_end(loop) }()
	stop := context.AfterFunc(ctx, func() { _ = w.Abort("the run's context ended: " + context.Cause(ctx).Error()) })
	defer stop()
	next := func(last error) (bool, error) {
		status := C.hvd_status(C.HVD_OK)
		if last != nil {
			status = C.HVD_CALLBACK_FAILED
			if e := (*Error)(nil); errors.As(last, &e) {
				status = C.hvd_status(e.Status)
			}
		}
		var again C.int32_t
		err := s.call(func(e *C.hvd_error) C.hvd_status { return C.hvd_run_next(loop, status, &again, e) })
		if err != nil && ctx.Err() != nil {
			return false, ended(ctx, "run")
		}
		if err != nil && last != nil && !interrupted(last) && err.(*Error).Status == Status(status) {
			return false, last
		}
		return again != 0, err
	}
	again, err := next(nil)
	for again && err == nil {
		last := train(ctx)
		again, err = next(last)
		for again && err == nil && interrupted(last) {
			if last = s.reset(ctx); last == nil {
				break
			}
			again, err = next(last)
		}
	}
	return err
}

func interrupted(err error) bool { return errors.Is(err, PeerLost) || errors.Is(err, HostsUpdated) }

func (s *State) reset(ctx context.Context) error {
	for _, reset := range s.resets {
		if err := reset(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Run is [State.Run] for a worker that has nothing to keep.
func (w *Worker) Run(ctx context.Context, train func(ctx context.Context) error) error {
	state, err := w.NewState()
	if err != nil {
		return err
	}
	defer state.Close()
	return state.Run(ctx, train)
}
