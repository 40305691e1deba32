//! One worker.
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hvd_sys as sys;
use sys::Sized0;

use crate::elastic::Recovery;
use crate::error::{check, Result};
use crate::options::Options;
use crate::raw::{self, c_string};

/// One worker of a job. Clones are the same worker. It may be used from any thread, several may live in one
/// process, and when the last clone is gone (its states, sets and listeners have one each) it leaves the job;
/// without [`Context::shutdown`] that is the loss of a worker. What is left of it then is
/// [`crate::Status::Closed`].
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

/// The library counts who uses the handle, and refuses it after a fork.
#[derive(Debug)]
pub(crate) struct Inner {
    ptr: *mut sys::hvd_context,
}

// SAFETY: "Functions may be called from any thread".
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is whole after each statement: a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: any handle may be given, at any time.
        unsafe { sys::hvd_destroy(self.ptr) };
    }
}

/// Place of a worker in the current generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Membership {
    /// Among all workers.
    pub rank: i32,
    pub size: i32,
    /// Among the workers of this host.
    pub local_rank: i32,
    pub local_size: i32,
    /// Among the workers with the same local rank on all hosts.
    pub cross_rank: i32,
    pub cross_size: i32,
    /// Counts from 1; 0 for a worker that is alone without a driver.
    pub generation: u64,
    /// Changes of hosts that this generation takes into account.
    pub membership_epoch: u64,
    /// Identity of this worker, kept through all generations.
    pub worker: u64,
    /// Of the driver, from 1 on: grows when another one takes over; 0: nobody takes over.
    pub term: u64,
}

/// The backend in use.
#[derive(Clone, Debug)]
pub struct Backend {
    /// "gloo"; "self" for a worker that is alone.
    pub name: String,
    /// Of the library underneath.
    pub version: String,
    /// File of the module.
    pub path: String,
    /// Interface, address.
    pub detail: String,
    /// Bit `1 << dtype` for each supported one.
    pub dtypes: u64,
    /// Bit `1 << hvd_collective` for each supported one.
    pub collectives: u64,
}

impl Context {
    /// Joins the job as the environment says (hvdrun sets it) and waits until this worker is a member of a
    /// generation, at most option `init_timeout`. Without a job it is alone: rank 0 of 1.
    pub fn new() -> Result<Context> {
        Context::open(ptr::null())
    }

    /// The same with options.
    pub fn with_options(options: &Options) -> Result<Context> {
        Context::open(options.ptr)
    }

    fn open(options: *const sys::hvd_options) -> Result<Context> {
        let context = Context::create(options)?;
        context.connect(None)?;
        Ok(context)
    }

    fn create(options: *const sys::hvd_options) -> Result<Context> {
        let mut ptr = ptr::null_mut();
        // SAFETY: options are NULL or live through the call; ptr is a place for the result.
        check(|e| unsafe { sys::hvd_context_create(options, &mut ptr, e) })?;
        Ok(Context { inner: Arc::new(Inner { ptr }) })
    }

    /// A worker that has joined no job yet: what needs one is [`crate::Status::Invalid`] until
    /// [`Context::connect`] has succeeded. Never blocks. A clone in another thread can [`Context::abort`] it
    /// from here on.
    pub fn unconnected(options: &Options) -> Result<Context> {
        Context::create(options.ptr)
    }

    /// Joins the job, at most `timeout` (None: option `init_timeout`). Once; [`crate::Status::Closed`] as
    /// soon as another thread aborts it.
    pub fn connect(&self, timeout: Option<Duration>) -> Result<()> {
        let context = self.get();
        // SAFETY: any handle may be given. Likewise below.
        check(|e| unsafe { sys::hvd_connect(context, raw::timeout(timeout), e) })
    }

    pub(crate) fn get(&self) -> *mut sys::hvd_context {
        self.inner.ptr
    }

    /// Says that this worker is done, with success, and leaves; waits until every member is done, at most
    /// `timeout` (None: option `shutdown_timeout`). If the last run failed it leaves without saying that it
    /// is done. After it every call is [`crate::Status::Closed`].
    pub fn shutdown(&self, timeout: Option<Duration>) -> Result<()> {
        let context = self.get();
        // SAFETY: the handle lives as long as self. Likewise below.
        check(|e| unsafe { sys::hvd_shutdown(context, raw::timeout(timeout), e) })
    }

    /// Asks that this worker may go, from any thread, and returns at once: at the next commit or check the
    /// others go on without it and repeat nothing. `run` then ends here with [`crate::Status::Closed`], and
    /// [`Context::has_left`] is true. Past the time-out (None: option `leave_timeout`) the worker is lost.
    pub fn leave(&self, timeout: Option<Duration>) -> Result<()> {
        let context = self.get();
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_leave(context, raw::timeout(timeout), e) })
    }

    /// Whether this worker has gone so.
    pub fn has_left(&self) -> bool {
        // SAFETY: any handle may be given.
        unsafe { sys::hvd_has_left(self.get()) != 0 }
    }

    /// A descriptor for signal handlers: a byte written to it does what `leave(None)` does. It belongs to the
    /// context.
    pub fn leave_fd(&self) -> Result<std::os::fd::RawFd> {
        let context = self.get();
        let mut fd = -1;
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_get_leave_fd(context, &mut fd, e) })?;
        Ok(fd)
    }

    /// Closes at once, from any thread: every pending and later call is [`crate::Status::Closed`]. To the job
    /// this is the loss of a worker.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let (context, reason) = (self.get(), c_string("reason", reason)?);
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_abort(context, reason.as_ptr(), e) })
    }

    /// Place in the current generation. Never blocks.
    pub fn membership(&self) -> Result<Membership> {
        let context = self.get();
        let mut m = sys::hvd_membership_info::sized();
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_get_membership(context, &mut m, e) })?;
        Ok(Membership {
            rank: m.rank,
            size: m.size,
            local_rank: m.local_rank,
            local_size: m.local_size,
            cross_rank: m.cross_rank,
            cross_size: m.cross_size,
            generation: m.generation,
            membership_epoch: m.membership_epoch,
            worker: m.worker,
            term: m.term,
        })
    }

    /// Rank among all workers.
    pub fn rank(&self) -> Result<i32> {
        Ok(self.membership()?.rank)
    }

    /// Number of workers.
    pub fn size(&self) -> Result<i32> {
        Ok(self.membership()?.size)
    }

    /// Number of the current generation.
    pub fn generation(&self) -> Result<u64> {
        Ok(self.membership()?.generation)
    }

    /// The backend in use.
    pub fn backend(&self) -> Result<Backend> {
        let context = self.get();
        let mut info = sys::hvd_backend_info::sized();
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_get_backend(context, &mut info, e) })?;
        Ok(Backend {
            name: raw::field(&info.name),
            version: raw::field(&info.version),
            path: raw::field(&info.path),
            detail: raw::field(&info.detail),
            dtypes: info.dtypes,
            collectives: info.collectives,
        })
    }

    /// The recoveries and planned resets of this worker, oldest first (the last 1024).
    pub fn recoveries(&self) -> Result<Vec<Recovery>> {
        let context = self.get();
        let mut count = 0;
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_get_recovery_count(context, &mut count, e) })?;
        (0..count)
            .map(|index| {
                let mut recovery = sys::hvd_recovery_info::sized();
                // SAFETY: as above.
                check(|e| unsafe { sys::hvd_get_recovery(context, index, &mut recovery, e) })?;
                Ok(Recovery::from_raw(&recovery))
            })
            .collect()
    }

    /// Records what this worker does into a file for ui.perfetto.dev; %w, %h and %p in `path` stand for
    /// worker, host and process.
    pub fn start_timeline(&self, path: &str) -> Result<()> {
        let (context, path) = (self.get(), c_string("path", path)?);
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_timeline_start(context, path.as_ptr(), e) })
    }

    /// Writes the rest of the timeline and closes its file.
    pub fn stop_timeline(&self) -> Result<()> {
        let context = self.get();
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_timeline_stop(context, e) })
    }
}
