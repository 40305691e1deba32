//! A value of the program's and what of it must survive: commits, restores, syncs.
use std::borrow::Cow;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::rc::Rc;

use hvd_sys as sys;
use sys::Sized0;

use crate::context::Context;
use crate::error::{check, Error, Result, Status};
use crate::fields::{compare, moved, Describe, Field, Fields, Known, Variables};
use crate::object::{self, lend, Slot};
use crate::raw::{self, Name};

type Load<S> = Box<dyn FnMut(&mut S, &str) -> Result<()>>;

/// The loader of [`State::on_lost`], the value that it loads into, and what the library knows of that value.
struct Lost<S> {
    load: Load<S>,
    value: *mut S,
    describe: Rc<Describe<S>>,
    known: Vec<(Cow<'static, str>, Known)>,
    slots: Vec<Rc<Slot>>,
    failure: Option<String>,
}

impl<S> Lost<S> {
    /// The library goes on with the memory that it knows, so all must still be there.
    fn reload(&mut self, sentence: &str) -> Result<()> {
        // SAFETY: a call on the state has the exclusive borrow of the value; it looks at it by address alone.
        let value = unsafe { &mut *self.value };
        self.slots.iter().for_each(|slot| slot.object.set(None));
        (self.load)(value, sentence)?;
        let mut fields = self.describe.fields(value);
        compare(&self.known, &fields)?;
        lend(&self.slots, &mut fields);
        Ok(())
    }
}

unsafe extern "C" fn lost<S>(userdata: *mut c_void, sentence: *const std::ffi::c_char) -> i32 {
    // SAFETY: userdata lives as long as the state, the sentence as long as this call.
    let (lost, sentence) =
        unsafe { (&mut *userdata.cast::<Lost<S>>(), std::ffi::CStr::from_ptr(sentence).to_string_lossy()) };
    let failure = match raw::caught(|| lost.reload(&sentence)) {
        Ok(Ok(())) => return 0,
        Ok(Err(e)) => e.message().to_owned(),
        Err(panic) => panic,
    };
    lost.failure = Some(format!("lost: {failure}"));
    1
}

type Reset<S> = Box<dyn FnMut(&mut S, &Context) -> Result<()>>;

/// A value of the program's and what of it must survive. It is used through the state (`state.step += 1`);
/// the memory of its tensors must stay where it is: write into a `Vec` of a state, but don't resize it, and
/// call [`State::relocate`] if you have replaced it.
///
/// Ranks commit at the same points. A change of hosts or a loss that a commit or a check tells is returned as
/// an error, which the training function passes on.
///
/// It is one thread's, as its callbacks run in the thread that calls:
///
/// ```compile_fail,E0277
/// # fn f(mut state: hvd::State<Vec<f32>>) {
/// std::thread::spawn(move || state.commit());
/// # }
/// ```
pub struct State<S> {
    ptr: *mut sys::hvd_state,
    context: Context,
    value: Box<S>,
    describe: Rc<Describe<S>>,
    known: Vec<(Cow<'static, str>, Known)>,
    slots: Vec<Rc<Slot>>, // of the objects, in their order; the library knows the addresses
    pub(crate) resets: Vec<Reset<S>>,
    lost: Option<Box<Lost<S>>>,
}

impl<S: std::fmt::Debug> std::fmt::Debug for State<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("value", &self.value).field("known", &self.known).finish()
    }
}

/// What commits, restores and syncs of a state did.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct StateStatistics {
    pub revision: u64,
    pub commits: u64,
    pub restores: u64,
    pub syncs: u64,
    /// Of one commit.
    pub bytes: u64,
    pub sync_sent_bytes: u64,
    pub sync_received_bytes: u64,
    /// Duration of the copy of the last commit.
    pub last_commit: std::time::Duration,
    /// Of tensors and values: what commits had to write because it had changed.
    pub written_bytes: u64,
    /// Of this rank's ranges of sharded keys.
    pub shard_bytes: u64,
    /// Of the copies of other ranks' ranges that this rank holds.
    pub copy_bytes: u64,
    /// That this worker had been fed before its first sync.
    pub fed_bytes: u64,
}

impl<S: Variables> State<S> {
    /// Makes `value` a state of this worker's.
    pub fn new(context: &Context, value: S) -> Result<State<S>> {
        State::make(context, value, Describe::Trait(S::variables))
    }
}

impl<S> State<S> {
    /// The same with a closure that names the fields, for types that can't implement [`Variables`].
    pub fn with(
        context: &Context,
        value: S,
        describe: impl for<'a> Fn(&'a mut S, &mut Fields<'a>) + 'static,
    ) -> Result<State<S>> {
        State::make(context, value, Describe::Closure(Box::new(describe)))
    }

    fn make(context: &Context, value: S, describe: Describe<S>) -> Result<State<S>> {
        let handle = context.get();
        let mut ptr = ptr::null_mut();
        // SAFETY: ptr is a place for the result.
        check(|e| unsafe { sys::hvd_state_create(handle, &mut ptr, e) })?;
        let mut state = State {
            ptr,
            context: context.clone(),
            value: Box::new(value),
            describe: Rc::new(describe),
            known: Vec::new(),
            slots: Vec::new(),
            resets: Vec::new(),
            lost: None,
        };
        state.register()?;
        Ok(state)
    }

    fn register(&mut self) -> Result<()> {
        let fields = self.describe.fields(&mut self.value);
        for (key, field) in fields.fields {
            let name = Name::new("key", &key)?;
            let known = field.known();
            match field {
                Field::Tensor(view) => {
                    // SAFETY: the memory is checked before each call that touches it. Likewise below.
                    check(|e| unsafe { sys::hvd_state_add_tensor(self.ptr, name.as_ptr(), &view.raw(), e) })?;
                }
                Field::Value(address, size, _) => {
                    // SAFETY: as above.
                    check(|e| unsafe {
                        sys::hvd_state_add_value(self.ptr, name.as_ptr(), address, size, e)
                    })?;
                }
                Field::Object(_) => {
                    let slot = Rc::<Slot>::default();
                    let userdata = Rc::as_ptr(&slot).cast_mut().cast();
                    // SAFETY: the slot lives as long as the state, which is destroyed first.
                    check(|e| unsafe {
                        sys::hvd_state_add_object(
                            self.ptr,
                            name.as_ptr(),
                            Some(object::save),
                            Some(object::load),
                            userdata,
                            None,
                            e,
                        )
                    })?;
                    self.slots.push(slot);
                }
                Field::Shard(shard) => shard.add(self.ptr, &name)?,
                Field::Sampler(sampler) => {
                    // SAFETY: the state keeps what it needs of the sampler.
                    check(|e| unsafe {
                        sys::hvd_state_add_sampler(self.ptr, name.as_ptr(), sampler.ptr(), e)
                    })?;
                }
            }
            self.known.push((key, known));
        }
        Ok(())
    }

    pub(crate) fn ptr(&self) -> *mut sys::hvd_state {
        self.ptr
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Runs `reset` after a new generation is formed and synced, before the training function is called again
    /// (not before its first call), in order of registration. All ranks may call collectives from it.
    pub fn on_reset(&mut self, reset: impl FnMut(&mut S, &Context) -> Result<()> + 'static) {
        self.resets.push(Box::new(reset));
    }

    /// If more workers are lost than shards have copies: `load` is called on every rank, with a sentence that
    /// says what is lost, and loads every field from the program's own checkpoint, in place: a tensor that is
    /// then in other memory is an error, as everywhere. Without it the job ends with that sentence.
    pub fn on_lost(&mut self, load: impl FnMut(&mut S, &str) -> Result<()> + 'static) -> Result<()> {
        let mut kept = Box::new(Lost {
            load: Box::new(load),
            value: ptr::from_mut(&mut *self.value),
            describe: self.describe.clone(),
            known: self.known.clone(),
            slots: self.slots.clone(),
            failure: None,
        });
        let userdata = ptr::from_mut::<Lost<S>>(&mut kept).cast();
        // SAFETY: the state is destroyed before what is kept here.
        check(|e| unsafe { sys::hvd_state_on_lost(self.ptr, Some(lost::<S>), userdata, None, e) })?;
        self.lost = Some(kept);
        Ok(())
    }

    /// Calls a function of the library that may read and write every field.
    pub(crate) fn call(
        &mut self,
        function: impl FnOnce(*mut sys::hvd_state, *mut sys::hvd_error) -> sys::hvd_status,
    ) -> Result<()> {
        let mut fields = self.describe.fields(&mut self.value);
        compare(&self.known, &fields)?;
        // From here on `fields` holds the exclusive borrow of everything that the library may touch.
        lend(&self.slots, &mut fields);
        let result = check(|error| function(self.ptr, error));
        let mut failure = None;
        for slot in &self.slots {
            slot.object.set(None);
            failure = failure.or(slot.failure.borrow_mut().take());
        }
        failure = failure.or(self.lost.as_mut().and_then(|lost| lost.failure.take()));
        drop(fields);
        match (result, failure) {
            (Err(e), Some(failure)) if e.status() == Status::CallbackFailed => {
                Err(Error::new(Status::CallbackFailed, format!("{}: {failure}", e.message())))
            }
            (result, _) => result,
        }
    }

    /// Tells the library which fields lie elsewhere now, with as many bytes of the same dtype: a `Vec` that
    /// was replaced by another. Nothing is copied. The next commit takes what they hold then, restore and
    /// sync write there. Without it the next call on the state is an error, which names the field.
    pub fn relocate(&mut self) -> Result<()> {
        let fields = self.describe.fields(&mut self.value);
        for index in moved(&self.known, &fields)? {
            let (key, field) = &fields.fields[index];
            let name = Name::new("key", key)?;
            // SAFETY: the memory is checked before each call that touches it.
            check(|e| unsafe { sys::hvd_state_set_data(self.ptr, name.as_ptr(), field.data(), e) })?;
            self.known[index].1 = field.known();
            if let Some(lost) = &mut self.lost {
                lost.known[index].1 = field.known();
            }
        }
        Ok(())
    }

    /// Copies everything as the next revision, then [`State::check_host_updates`]. All ranks call it at the
    /// same point. [`Status::HostsUpdated`] and [`Status::PeerLost`] mean that the copy was made, and must be
    /// passed on.
    pub fn commit(&mut self) -> Result<()> {
        // SAFETY: the handle is ours, and `call` has checked the memory. Likewise below.
        self.call(|state, e| unsafe { sys::hvd_state_commit(state, e) })
    }

    /// Begins a commit that is copied while the program computes. Values and objects are saved when it
    /// returns.
    ///
    /// # Safety
    ///
    /// Another thread reads the tensors of the state until [`State::commit_end`], or the next commit, restore
    /// or sync, has returned: nothing may write them, replace them or free them before.
    pub unsafe fn commit_begin(&mut self) -> Result<()> {
        // SAFETY: as above, and the caller's promise.
        self.call(|state, e| unsafe { sys::hvd_state_commit_begin(state, e) })
    }

    /// Waits for what is left of the commit that was begun, and then does what [`State::commit`] does after
    /// its copy.
    pub fn commit_end(&mut self) -> Result<()> {
        // SAFETY: as above.
        self.call(|state, e| unsafe { sys::hvd_state_commit_end(state, e) })
    }

    /// The copy without the check, and without any communication.
    pub fn save(&mut self) -> Result<()> {
        // SAFETY: as above.
        self.call(|state, e| unsafe { sys::hvd_state_save(state, e) })
    }

    /// Asks all ranks, at the same point, whether hosts have changed: [`Status::HostsUpdated`] on all of
    /// them, or Ok.
    pub fn check_host_updates(&mut self) -> Result<()> {
        // SAFETY: as above.
        self.call(|state, e| unsafe { sys::hvd_state_check_host_updates(state, e) })
    }

    /// Puts back the last commit, bit for bit.
    pub fn restore(&mut self) -> Result<()> {
        // SAFETY: as above.
        self.call(|state, e| unsafe { sys::hvd_state_restore(state, e) })
    }

    /// Makes all ranks' state that of the survivor with the highest revision. [`crate::elastic::run`] does so
    /// for each generation.
    pub fn sync(&mut self) -> Result<()> {
        // SAFETY: as above.
        self.call(|state, e| unsafe { sys::hvd_state_sync(state, e) })
    }

    /// Number of the last commit: 0 before the first.
    pub fn revision(&self) -> u64 {
        // SAFETY: never blocks, reads a number.
        unsafe { sys::hvd_state_revision(self.ptr) }
    }

    /// What commits, restores and syncs did.
    pub fn statistics(&self) -> Result<StateStatistics> {
        let mut s = sys::hvd_state_info::sized();
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_state_get_info(self.ptr, &mut s, e) })?;
        Ok(StateStatistics {
            revision: s.revision,
            commits: s.commits,
            restores: s.restores,
            syncs: s.syncs,
            bytes: s.bytes,
            sync_sent_bytes: s.sync_sent_bytes,
            sync_received_bytes: s.sync_received_bytes,
            last_commit: std::time::Duration::from_nanos(s.last_commit_ns.max(0) as u64),
            written_bytes: s.written_bytes,
            shard_bytes: s.shard_bytes,
            copy_bytes: s.copy_bytes,
            fed_bytes: s.fed_bytes,
        })
    }
}

impl<S> Deref for State<S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.value
    }
}
impl<S> DerefMut for State<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.value
    }
}

impl<S> Drop for State<S> {
    fn drop(&mut self) {
        // SAFETY: any handle may be given.
        unsafe { sys::hvd_state_destroy(self.ptr) }
    }
}
