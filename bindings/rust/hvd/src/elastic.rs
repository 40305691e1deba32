//! The elastic loop.
use std::ptr;
use std::time::Duration;

use hvd_sys as sys;

use crate::context::Context;
use crate::error::{Error, Failure, Result, Status};
use crate::raw;
use crate::state::State;

/// An open loop; the C library allows one at a time per context.
struct Loop {
    ptr: *mut sys::hvd_run_loop,
    state: *mut sys::hvd_state, // which it restores and syncs
}

impl Drop for Loop {
    fn drop(&mut self) {
        // SAFETY: any handle may be given.
        unsafe { sys::hvd_run_end(self.ptr) }
    }
}

/// Does everything between two calls of the training function; whether to call it again.
fn next<S>(state: &mut State<S>, run: &Loop, last: Option<Status>) -> Result<bool> {
    if state.ptr() != run.state {
        // Its fields would be checked, and another state's memory written.
        return Err(Error::invalid(
            "the training function has put another state in the run's place: expected the same one",
        ));
    }
    let mut again = 0;
    let last = last.map_or(sys::HVD_OK, Status::as_raw);
    // SAFETY: the loop is open; `call` has checked the memory of its state.
    state.call(|_, e| unsafe { sys::hvd_run_next(run.ptr, last, &mut again, e) })?;
    Ok(again != 0)
}

fn interrupted(status: Option<Status>) -> bool {
    matches!(status, Some(Status::PeerLost | Status::HostsUpdated))
}

/// Calls `train` until it is complete: sync, train; when a peer is lost restore, rejoin, sync, reset
/// callbacks, train again; when hosts have changed the same without restore. Blocks.
///
/// `train` passes on [`Status::PeerLost`] and [`Status::HostsUpdated`] as it got them (with `?`). Any other
/// error ends the run, as does a panic; the worker then leaves the job without having said that it is done.
/// Collectives are called on the context, commits on the state.
pub fn run<S, T, E: Failure>(
    state: &mut State<S>,
    mut train: impl FnMut(&mut State<S>) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let context = state.context().clone();
    let mut run = Loop { ptr: ptr::null_mut(), state: state.ptr() };
    let handle = context.get();
    state.call(|state, e| {
        // SAFETY: both handles are live; the state outlives the loop, which ends in this function.
        unsafe { sys::hvd_run_begin(handle, state, &mut run.ptr, e) }
    })?;
    next(state, &run, None)?;
    loop {
        let error = match train(state) {
            Ok(result) => {
                next(state, &run, None)?;
                return Ok(result);
            }
            Err(error) => error,
        };
        let mut status = error.status();
        if !interrupted(status) {
            return Err(end(state, &run, error));
        }
        // A reset callback may be interrupted like the training function.
        while interrupted(status) {
            if !next(state, &run, status)? {
                // As was wished: there is no result, as training is not complete.
                return Err(E::from(Error::new(Status::Closed, "this worker has left the job")));
            }
            status = match reset(state, &context) {
                Ok(()) => None,
                Err(e) if interrupted(Some(e.status())) => Some(e.status()),
                Err(e) => return Err(end(state, &run, E::from(e))),
            };
        }
    }
}

fn reset<S>(state: &mut State<S>, context: &Context) -> Result<()> {
    // Taken out meanwhile, as they get the state's value.
    let mut resets = std::mem::take(&mut state.resets);
    let result = resets.iter_mut().try_for_each(|reset| reset(state, context));
    resets.append(&mut state.resets);
    state.resets = resets;
    result
}

/// The run fails with the training function's error, or because the job has ended.
fn end<S, E: Failure>(state: &mut State<S>, run: &Loop, error: E) -> E {
    let status = error.status().unwrap_or(Status::CallbackFailed);
    match next(state, run, Some(status)) {
        Err(why) if why.status() != status => E::from(why),
        _ => error,
    }
}

/// [`run`] for a worker that has nothing to keep.
pub fn run_stateless<T, E: Failure>(
    context: &Context,
    mut train: impl FnMut() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let mut state = State::with(context, (), |(), _| {})?;
    run(&mut state, |_| train())
}

/// One recovery or planned reset of a worker. Phases that did not happen are zero.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Recovery {
    pub from_generation: u64,
    pub to_generation: u64,
    /// [`Status::PeerLost`] or [`Status::HostsUpdated`].
    pub cause: Status,
    pub from_size: i32,
    pub to_size: i32,
    /// Generations tried.
    pub attempts: i32,
    /// After the sync.
    pub revision: u64,
    /// Nanoseconds of the monotonic clock when this worker learnt of it.
    pub began_at: i64,
    /// Silence of the lost worker until it was given up.
    pub detection: Duration,
    /// From learning of it until the training function had returned.
    pub abort: Duration,
    pub restore: Duration,
    /// From registering until the new assignment.
    pub forming: Duration,
    pub connecting: Duration,
    pub sync: Duration,
    /// Until the training function is called again.
    pub total: Duration,
    /// Payload received and sent by this rank.
    pub sync_bytes: u64,
    /// "rank 2 on host b lost: connection closed"
    pub reason: String,
}

impl Recovery {
    pub(crate) fn from_raw(r: &sys::hvd_recovery_info) -> Recovery {
        let time = |nanoseconds: i64| Duration::from_nanos(nanoseconds.max(0) as u64);
        Recovery {
            from_generation: r.from_generation,
            to_generation: r.to_generation,
            cause: Status::from_raw(r.cause),
            from_size: r.from_size,
            to_size: r.to_size,
            attempts: r.attempts,
            revision: r.revision,
            began_at: r.began_at_ns,
            detection: time(r.detection_ns),
            abort: time(r.abort_ns),
            restore: time(r.restore_ns),
            forming: time(r.forming_ns),
            connecting: time(r.connecting_ns),
            sync: time(r.sync_ns),
            total: time(r.total_ns),
            sync_bytes: r.sync_bytes,
            reason: raw::field(&r.reason),
        }
    }
}
