//! What happens to a worker, told as it happens.
use std::ffi::c_void;
use std::ops::BitOr;
use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::time::Duration;

use hvd_sys as sys;
use sys::Sized0;

use crate::context::Context;
use crate::error::{check, Error, Result, Status};
use crate::options::drop_box;
use crate::raw;

/// Kinds of events, or-ed: `Kinds::PEER_LOST | Kinds::GENERATION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u32);

#[allow(missing_docs)]
impl Kinds {
    pub const HOSTS_UPDATED: Kinds = Kinds(sys::HVD_EVENT_HOSTS_UPDATED);
    pub const PEER_LOST: Kinds = Kinds(sys::HVD_EVENT_PEER_LOST);
    pub const GENERATION: Kinds = Kinds(sys::HVD_EVENT_GENERATION);
    pub const JOB_ENDED: Kinds = Kinds(sys::HVD_EVENT_JOB_ENDED);
    pub const DRIVER_LOST: Kinds = Kinds(sys::HVD_EVENT_DRIVER_LOST);
    pub const RECOVERED: Kinds = Kinds(sys::HVD_EVENT_RECOVERED);
    pub const STALLED: Kinds = Kinds(sys::HVD_EVENT_STALLED);
    pub const DIVERGED: Kinds = Kinds(sys::HVD_EVENT_DIVERGED);
    pub const DRIVER_BACK: Kinds = Kinds(sys::HVD_EVENT_DRIVER_BACK);
    pub const ALL: Kinds = Kinds(sys::HVD_EVENT_ALL);
}

impl BitOr for Kinds {
    type Output = Kinds;
    fn bitor(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The driver saw hosts change; agreed on at the next commit.
    HostsUpdated,
    /// The generation is lost.
    PeerLost,
    /// A new generation is formed and connected.
    Generation,
    /// The driver ended the job.
    JobEnded,
    /// The driver is gone.
    DriverLost,
    /// A recovery was recorded.
    Recovered,
    /// Rank 0: an operation waits for ranks that the message names.
    Stalled,
    /// The rank committed other bytes than most (option `divergence_every`).
    Diverged,
    /// There is a driver again.
    DriverBack,
    /// One that this version of the binding does not know.
    Other(u32),
}

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// Events dropped before this one because nobody took them.
    pub lost: u32,
    /// Grows by one with each event of the context.
    pub sequence: u64,
    /// The generation in which it happened.
    pub generation: u64,
    /// Changes of hosts so far.
    pub membership_epoch: u64,
    /// The rank that was lost.
    pub rank: Option<i32>,
    /// Size of the generation, where it matters.
    pub size: i32,
    /// For example hosts added and removed.
    pub message: String,
}

impl Event {
    fn from_raw(e: &sys::hvd_event) -> Event {
        let kind = match Kinds(e.kind) {
            Kinds::HOSTS_UPDATED => EventKind::HostsUpdated,
            Kinds::PEER_LOST => EventKind::PeerLost,
            Kinds::GENERATION => EventKind::Generation,
            Kinds::JOB_ENDED => EventKind::JobEnded,
            Kinds::DRIVER_LOST => EventKind::DriverLost,
            Kinds::RECOVERED => EventKind::Recovered,
            Kinds::STALLED => EventKind::Stalled,
            Kinds::DIVERGED => EventKind::Diverged,
            Kinds::DRIVER_BACK => EventKind::DriverBack,
            Kinds(other) => EventKind::Other(other),
        };
        Event {
            kind,
            lost: e.lost,
            sequence: e.sequence,
            generation: e.generation,
            membership_epoch: e.membership_epoch,
            rank: (e.rank >= 0).then_some(e.rank),
            size: e.size,
            message: raw::field(&e.message),
        }
    }
}

/// A listener; dropping it removes it, and waits for a call of it in flight.
#[derive(Debug)]
pub struct Listener {
    number: u64,
    context: Context,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: any handle may be given. A failure means that it is closed, and its listeners with it.
        unsafe { sys::hvd_remove_listener(self.context.get(), self.number, std::ptr::null_mut()) };
    }
}

type Listen = Box<dyn FnMut(&Event) + Send>;

unsafe extern "C" fn on_event(userdata: *mut c_void, event: *const sys::hvd_event) {
    // SAFETY: userdata is the box given with this function; one call at a time, so that the borrow is
    // exclusive.
    let (listen, event) = unsafe { (&mut *userdata.cast::<Listen>(), Event::from_raw(&*event)) };
    // There is nobody to tell of a panic in a listener; it stays registered.
    let _ = raw::caught(|| listen(&event));
}

impl Context {
    /// Calls `listener` from a thread that does nothing else, one call at a time. It may use the context, but
    /// a blocking call holds up later events, and [`Context::shutdown`] is [`Status::Invalid`] there.
    pub fn listen(&self, kinds: Kinds, listener: impl FnMut(&Event) + Send + 'static) -> Result<Listener> {
        let context = self.get();
        let userdata = Box::into_raw(Box::new(Box::new(listener) as Listen)).cast();
        let mut number = 0;
        // SAFETY: drop_box runs exactly once, also on failure.
        check(|e| unsafe {
            let destroy = Some(drop_box::<Listen> as unsafe extern "C" fn(*mut c_void));
            sys::hvd_register_listener(context, kinds.0, Some(on_event), userdata, destroy, &mut number, e)
        })?;
        Ok(Listener { number, context: self.clone() })
    }

    /// Events from here on, to be received.
    pub fn events(&self, kinds: Kinds) -> Result<EventStream> {
        let (sender, receiver) = mpsc::channel();
        let listener = self.listen(kinds, move |event| drop(sender.send(event.clone())))?;
        Ok(EventStream { receiver, _listener: listener })
    }

    /// A descriptor that polls readable while [`Context::next_event`] has something to give. Events are
    /// queued from this call on.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        let context = self.get();
        let mut fd = -1;
        // SAFETY: the handle lives as long as self. Likewise below.
        check(|e| unsafe { sys::hvd_get_event_fd(context, &mut fd, e) })?;
        // SAFETY: the context's descriptor, open as long as the context.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// The next event that was queued, if there is one. Never blocks.
    pub fn next_event(&self) -> Result<Option<Event>> {
        let context = self.get();
        let (mut event, mut available) = (sys::hvd_event::sized(), 0);
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_next_event(context, &mut event, &mut available, e) })?;
        Ok((available != 0).then(|| Event::from_raw(&event)))
    }
}

/// Events of a context: see [`Context::events`].
#[derive(Debug)]
pub struct EventStream {
    receiver: mpsc::Receiver<Event>,
    _listener: Listener,
}

impl EventStream {
    /// The next event, or [`Status::Timeout`].
    pub fn next(&self, timeout: Duration) -> Result<Event> {
        self.receiver.recv_timeout(timeout).map_err(|e| match e {
            mpsc::RecvTimeoutError::Timeout => {
                Error::new(Status::Timeout, format!("no event in {timeout:?}"))
            }
            mpsc::RecvTimeoutError::Disconnected => Error::new(Status::Closed, "the context is closed"),
        })
    }

    /// The next event, if there is one already.
    pub fn try_next(&self) -> Option<Event> {
        self.receiver.try_recv().ok()
    }
}
