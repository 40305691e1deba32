// Events of a context, as callbacks and on a channel.

package hvd

/*
#include "bridge.h"
*/
import "C"

import (
	"runtime/cgo"
)

// EventKind is one kind of event, or several or-ed.
type EventKind uint32

// Kinds of events.
const (
	EventHostsUpdated EventKind = C.HVD_EVENT_HOSTS_UPDATED // the driver saw hosts change; agreed on at the next commit
	EventPeerLost     EventKind = C.HVD_EVENT_PEER_LOST     // the generation is lost
	EventGeneration   EventKind = C.HVD_EVENT_GENERATION    // a new generation is formed and connected
	EventJobEnded     EventKind = C.HVD_EVENT_JOB_ENDED     // the driver ended the job
	EventDriverLost   EventKind = C.HVD_EVENT_DRIVER_LOST   // the driver is gone; training goes on
	EventRecovered    EventKind = C.HVD_EVENT_RECOVERED     // a recovery was recorded
	EventStalled      EventKind = C.HVD_EVENT_STALLED       // rank 0: an operation waits for ranks that the message names
	EventDiverged     EventKind = C.HVD_EVENT_DIVERGED      // the rank committed other bytes than most (option divergence_every)
	EventDriverBack   EventKind = C.HVD_EVENT_DRIVER_BACK   // there is a driver again
	EventAll          EventKind = 0xffffffff
)

// Event is something that happened to a worker.
type Event struct {
	Kind            EventKind // one bit
	Lost            uint32    // events dropped before this one because nobody took them
	Sequence        uint64    // grows by one with each event of the worker
	Generation      uint64
	MembershipEpoch uint64
	Rank            int // that was lost, or -1
	Size            int // of the generation, where it matters
	Message         string
}

// Events is a subscription. C gives the events; it is closed when the subscription or the worker is.
type Events struct {
	C      <-chan Event
	worker *Worker
	number C.uint64_t
	sink   *eventSink
}

type eventSink struct {
	channel chan Event
	lost    uint32
}

// released is called when no event can come any more.
func (s *eventSink) released() { close(s.channel) }

// Events subscribes to events of these kinds. The channel holds 256; when it is full the newest are dropped,
// and counted in Lost of the next one.
func (w *Worker) Events(kinds EventKind) (*Events, error) {
	sink := &eventSink{channel: make(chan Event, 256)}
	events := &Events{C: sink.channel, worker: w, sink: sink}
	err := w.call(func(c *C.hvd_context, e *C.hvd_error) C.hvd_status {
		handle := cgo.NewHandle(sink)
		return C.hvdgo_register_listener(c, C.hvd_event_kind(kinds), C.uintptr_t(handle), &events.number, e)
	})
	if err != nil {
		return nil, err
	}
	return events, nil
}

// Close ends the subscription. Nothing happens if the worker is closed.
func (e *Events) Close() {
	if e == nil {
		return
	}
	_ = e.worker.call(func(c *C.hvd_context, error *C.hvd_error) C.hvd_status {
		return C.hvd_remove_listener(c, e.number, error)
	})
}

//export hvdgoEvent
func hvdgoEvent(handle C.uintptr_t, event *C.hvd_event) {
	defer dropPanic()
	sink := cgo.Handle(handle).Value().(*eventSink)
	e := Event{
		Kind: EventKind(event.kind), Lost: uint32(event.lost) + sink.lost, Sequence: uint64(event.sequence),
		Generation: uint64(event.generation), MembershipEpoch: uint64(event.membership_epoch), Rank: int(event.rank),
		Size: int(event.size), Message: text(event.message[:]),
	}
	select {
	case sink.channel <- e:
		sink.lost = 0
	default:
		sink.lost++
	}
}
