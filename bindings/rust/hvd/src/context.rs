//! One worker.
use std::any::Any;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hvd_sys as sys;
use sys::Sized0;

use crate::elastic::Recovery;
use crate::error::{check, Result};
use crate::fork::Process;
use crate::operation::Operation;
use crate::options::Options;
use crate::raw::{self, c_string};

/// One worker of a job. Clones are the same worker. It may be used from any thread, several may live in one
/// process, and when the last clone (and what was made from it: states, samplers, pending operations, listeners)
/// is gone it leaves the job; without [`Context::shutdown`] that is the loss of a worker.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

/// An operation whose owner is gone, with the memory that it may still write.
pub(crate) struct Orphan {
    pub(crate) op: Arc<Operation>, // no Handle, which would keep the context that keeps it
    pub(crate) memory: Box<dyn Any + Send>,
}

pub(crate) struct Inner {
    ptr: *mut sys::hvd_context,
    process: Process,
    orphans: Mutex<Vec<Orphan>>,
}

// SAFETY: "Functions may be called from any thread"; what is ours is behind a mutex.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker of {:?}", self.process)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is whole after each statement: a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// The handle, for one call.
    pub(crate) fn get(&self) -> Result<*mut sys::hvd_context> {
        self.process.check()?;
        Ok(self.ptr)
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_this()
    }

    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Keeps the memory of an operation until it has completed.
    pub(crate) fn adopt(&self, orphan: Orphan) {
        lock(&self.orphans).push(orphan);
    }

    /// Frees what operations have completed with meanwhile.
    pub(crate) fn sweep(&self) {
        let mut orphans = lock(&self.orphans);
        if orphans.is_empty() {
            return;
        }
        let (done, pending) = orphans.drain(..).partition(|orphan| orphan.op.is_done());
        *orphans = pending;
        drop(orphans);
        drop::<Vec<Orphan>>(done);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.is_ours() {
            return; // its threads are the parent's
        }
        // SAFETY: the last owner: no call is running, and what was made from it is gone.
        unsafe { sys::hvd_destroy(self.ptr) };
        for orphan in lock(&self.orphans).drain(..) {
            // Destroying ends every operation; should one not have ended, its memory is better lost than freed.
            if !orphan.op.is_done() {
                std::mem::forget(orphan.memory);
            }
        }
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
        let mut ptr = ptr::null_mut();
        // SAFETY: options are NULL or live through the call; ptr is a place for the result.
        check(|e| unsafe { sys::hvd_init(options, &mut ptr, e) })?;
        Ok(Context { inner: Arc::new(Inner { ptr, process: Process::current(), orphans: Mutex::default() }) })
    }

    pub(crate) fn get(&self) -> Result<*mut sys::hvd_context> {
        self.inner.get()
    }

    /// Says that this worker is done, with success, and leaves; waits until every member is done, at most `timeout`
    /// (None: option `shutdown_timeout`). If the last run failed it leaves without saying that it is done. After it every
    /// call is [`crate::Status::Closed`].
    pub fn shutdown(&self, timeout: Option<Duration>) -> Result<()> {
        let context = self.get()?;
        // SAFETY: the handle lives as long as self. Likewise below.
        check(|e| unsafe { sys::hvd_shutdown(context, raw::timeout(timeout), e) })
    }

    /// Closes at once, from any thread: every pending and later call is [`crate::Status::Closed`]. To the job this is
    /// the loss of a worker.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let (context, reason) = (self.get()?, c_string("reason", reason)?);
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_abort(context, reason.as_ptr(), e) })
    }

    /// Place in the current generation. Never blocks.
    pub fn membership(&self) -> Result<Membership> {
        let context = self.get()?;
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
        let context = self.get()?;
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
        let context = self.get()?;
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

    /// Records what this worker does into a file for ui.perfetto.dev; %w, %h and %p in `path` stand for worker, host
    /// and process.
    pub fn start_timeline(&self, path: &str) -> Result<()> {
        let (context, path) = (self.get()?, c_string("path", path)?);
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_timeline_start(context, path.as_ptr(), e) })
    }

    /// Writes the rest of the timeline and closes its file.
    pub fn stop_timeline(&self) -> Result<()> {
        let context = self.get()?;
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_timeline_stop(context, e) })
    }
}
