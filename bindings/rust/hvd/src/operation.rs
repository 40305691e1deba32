//! Operations under way, and who keeps their memory.
use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hvd_sys as sys;
use sys::Sized0;

use crate::call::Call;
use crate::context::{lock, Context};
use crate::error::{check, Error, Result, Status};
use crate::raw::{self, Name};
use crate::tensor::{self, Element, View, ViewMut};

/// The library's operation, for those who wait for it.
#[derive(Debug)]
pub(crate) struct Operation {
    ptr: *mut sys::hvd_op,
}

// SAFETY: an op may be used by several threads.
unsafe impl Send for Operation {}
// SAFETY: as above.
unsafe impl Sync for Operation {}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: any handle may be given. Its memory is seen to by whoever held it.
        unsafe { sys::hvd_op_destroy(self.ptr) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Handle {
    op: Arc<Operation>,
}

impl Handle {
    pub(crate) fn is_done(&self) -> bool {
        let mut done = 0;
        // SAFETY: any handle may be given. Likewise below. In a forked child, where it is refused, nobody
        // works on it.
        unsafe { sys::hvd_op_test(self.op.ptr, &mut done, ptr::null_mut()) != sys::HVD_OK || done != 0 }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_op_wait(self.op.ptr, raw::timeout(timeout), e) })
    }

    /// Leaves it to itself; the library drops `memory` when the operation is done with it.
    fn abandon<B: Send + 'static>(&self, memory: B) {
        unsafe extern "C" fn free<B>(memory: *mut c_void) {
            // SAFETY: made by into_raw below, and given back once.
            drop(unsafe { Box::from_raw(memory.cast::<B>()) });
        }
        let memory = Box::into_raw(Box::new(memory)).cast();
        // SAFETY: the memory is the library's from here on, also if it refuses the handle.
        unsafe { sys::hvd_op_abandon(self.op.ptr, memory, Some(free::<B>), ptr::null_mut()) };
    }

    fn completion_fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = -1;
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_op_get_fd(self.op.ptr, &mut fd, e) })?;
        // SAFETY: the operation's, which self keeps.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Returns when the library is done with the operation's memory, whatever became of it. The operation's
    /// own time-out bounds that.
    fn settle(&self) {
        while !self.is_done() {
            // SAFETY: as above.
            unsafe { sys::hvd_op_wait(self.op.ptr, sys::HVD_DEFAULT_TIMEOUT, ptr::null_mut()) };
        }
    }

    fn output(&self, index: usize) -> Result<sys::hvd_tensor> {
        let mut tensor = sys::hvd_tensor::sized();
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_op_get_output(self.op.ptr, index, &mut tensor, e) })?;
        Ok(tensor)
    }

    fn received(&self) -> Result<Vec<i64>> {
        let mut count = 0;
        // SAFETY: as above; NULL asks for the number alone.
        check(|e| unsafe { sys::hvd_op_get_received_splits(self.op.ptr, ptr::null_mut(), &mut count, e) })?;
        let mut splits = vec![0; count];
        // SAFETY: as above; count is the room.
        check(|e| unsafe {
            sys::hvd_op_get_received_splits(self.op.ptr, splits.as_mut_ptr(), &mut count, e)
        })?;
        Ok(splits)
    }
}

/// A tensor of the library's: what came out of an operation whose size others decide.
#[derive(Clone, Debug)]
pub struct Buffer {
    _handle: Handle, // to which the memory belongs
    tensor: sys::hvd_tensor,
}

// SAFETY: memory that nobody writes any more; the handle may be shared.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Elements per dimension.
    pub fn shape(&self) -> Vec<usize> {
        self.tensor.shape[..self.tensor.ndim as usize].iter().map(|&n| n as usize).collect()
    }
    /// The elements, row-major. [`Status::Invalid`] if they are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        tensor::slice_of(&self.tensor)
    }
    /// A copy of the elements.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.as_slice()?.to_vec())
    }
}

/// Rows (first dimension) that an operation wrote into the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows(pub usize);

/// What an alltoall gives: the rows that came, and how many from each member.
#[derive(Clone, Debug)]
pub struct Exchange<R = Buffer> {
    /// The rows, in rank order.
    pub output: R,
    /// Rows that came from each member.
    pub received: Vec<i64>,
}

/// The rank that joined last, whose values are the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastJoined(pub i32);

/// What comes out of a completed operation.
pub trait Outcome: Sized {
    #[doc(hidden)]
    fn of(op: &Completed<'_>) -> Result<Self>;
}

/// An operation that has completed with success.
#[doc(hidden)]
#[derive(Debug)]
pub struct Completed<'a>(pub(crate) &'a Handle, pub(crate) usize);

impl Outcome for () {
    fn of(_: &Completed<'_>) -> Result<()> {
        Ok(())
    }
}
impl Outcome for Buffer {
    fn of(op: &Completed<'_>) -> Result<Buffer> {
        Ok(Buffer { _handle: op.0.clone(), tensor: op.0.output(0)? })
    }
}
impl Outcome for Vec<Buffer> {
    fn of(op: &Completed<'_>) -> Result<Vec<Buffer>> {
        (0..op.1).map(|index| Ok(Buffer { _handle: op.0.clone(), tensor: op.0.output(index)? })).collect()
    }
}
impl Outcome for Rows {
    fn of(op: &Completed<'_>) -> Result<Rows> {
        Ok(Rows(op.0.output(0)?.shape[0] as usize))
    }
}
impl<R: Outcome> Outcome for Exchange<R> {
    fn of(op: &Completed<'_>) -> Result<Exchange<R>> {
        Ok(Exchange { output: R::of(op)?, received: op.0.received()? })
    }
}
impl Outcome for LastJoined {
    fn of(op: &Completed<'_>) -> Result<LastJoined> {
        let mut rank = -1;
        // SAFETY: as above.
        check(|e| unsafe { sys::hvd_op_get_last_joined(op.0.op.ptr, &mut rank, e) })?;
        Ok(LastJoined(rank))
    }
}

/// What is to be submitted.
pub(crate) struct Submission<'a> {
    pub(crate) collective: i32,
    pub(crate) call: Call<'a>,
    pub(crate) root: i32,
    pub(crate) inputs: &'a [View<'a>],
    pub(crate) outputs: &'a [ViewMut<'a>],
    pub(crate) count: usize,
}

/// An operation under way: its memory is whoever calls this to see to.
pub(crate) fn submit(context: &Context, s: &Submission<'_>) -> Result<Handle> {
    let handle = context.get();
    let name = Name::new("name", s.call.name)?;
    let mut request = sys::hvd_request::sized();
    // A group of nothing is a barrier of that name, as in hvd.h; a request's count of 0 is one tensor.
    let groups =
        [sys::HVD_COLLECTIVE_ALLREDUCE, sys::HVD_COLLECTIVE_BROADCAST, sys::HVD_COLLECTIVE_ALLGATHER];
    let empty = s.count == 0 && groups.contains(&s.collective);
    request.collective = if empty { sys::HVD_COLLECTIVE_BARRIER } else { s.collective };
    if s.collective != sys::HVD_COLLECTIVE_JOIN && !s.call.name.is_empty() {
        request.name = name.as_ptr();
    }
    if !s.inputs.is_empty() {
        request.inputs = s.inputs.as_ptr().cast(); // View is a hvd_tensor
    }
    if !s.outputs.is_empty() {
        request.outputs = s.outputs.as_ptr().cast();
    }
    request.count = s.count;
    request.priority = s.call.priority;
    if !empty {
        request.root = s.root;
        request.reduction = s.call.reduction.map_or(0, |r| r as i32);
        request.prescale = s.call.prescale;
        request.postscale = s.call.postscale;
    }
    if let Some(splits) = s.call.splits {
        request.splits = splits.as_ptr();
        request.split_count = splits.len();
    }
    if let Some(set) = s.call.set {
        request.process_set = set.get(context)?;
    }
    request.timeout_ns = s.call.timeout.map_or(0, raw::nanoseconds);
    let mut op = ptr::null_mut();
    // SAFETY: names, splits and descriptors are copied; the caller keeps the tensors' memory until
    // completion.
    check(|e| unsafe { sys::hvd_submit(handle, &request, &mut op, e) })?;
    Ok(Handle { op: Arc::new(Operation { ptr: op }) })
}

/// Runs it to its end: the buffers are borrowed for as long as the library may touch them.
pub(crate) fn run<R: Outcome>(context: &Context, s: &Submission<'_>) -> Result<R> {
    let handle = submit(context, s)?;
    // The wait can end before the operation only if that breaks its promise; then the buffers must stay.
    if let Err(e) = handle.wait(None) {
        handle.settle();
        return Err(e);
    }
    R::of(&Completed(&handle, s.count))
}

/// An operation in a [`Scope`], on memory that is borrowed until the scope ends.
#[derive(Debug)]
pub struct Op<'scope, R> {
    handle: Handle,
    count: usize,
    scope: PhantomData<&'scope ()>,
    result: PhantomData<fn() -> R>,
}

impl<R: Outcome> Op<'_, R> {
    /// Whether it has completed, in success or failure. Never blocks.
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    /// A descriptor that polls readable from the moment it has completed, for an event loop (mio, or a
    /// duplicate of it in tokio's `AsyncFd`). It is not to be read from or written to.
    pub fn completion_fd(&self) -> Result<BorrowedFd<'_>> {
        self.handle.completion_fd()
    }

    /// Waits until it has completed and gives what came out. May be called again, and by several threads.
    pub fn wait(&self) -> Result<R> {
        self.handle.wait(None)?;
        R::of(&Completed(&self.handle, self.count))
    }

    /// The same with a bound: [`Status::Timeout`], naming the ranks that have not called it, while it goes
    /// on.
    pub fn wait_for(&self, timeout: Duration) -> Result<R> {
        self.handle.wait(Some(timeout))?;
        R::of(&Completed(&self.handle, self.count))
    }
}

/// An operation that owns its memory `B` and gives `R`. Dropped while it is pending, it goes on, and the
/// library keeps its memory until it has completed; leaked, its memory is leaked too.
///
/// Its memory can't be had before [`Pending::wait`] gives it back, and the operation can't be used after
/// that:
///
/// ```compile_fail,E0382
/// # fn f(context: &hvd::Context) -> hvd::Result<()> {
/// let pending = context.start_allreduce("a", vec![1.0f32; 1000])?;
/// let (sum, ()) = pending.wait()?;
/// pending.wait()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Pending<B: Send + 'static, R> {
    handle: Handle,
    count: usize,
    memory: Option<B>,
    result: PhantomData<fn() -> R>,
}

impl<B: Send + 'static, R: Outcome> Pending<B, R> {
    pub(crate) fn new(handle: Handle, count: usize, memory: B) -> Self {
        Pending { handle, count, memory: Some(memory), result: PhantomData }
    }

    /// Whether it has completed, in success or failure. Never blocks.
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    /// A descriptor that polls readable from the moment it has completed, for an event loop (mio, or a
    /// duplicate of it in tokio's `AsyncFd`). It is not to be read from or written to.
    pub fn completion_fd(&self) -> Result<BorrowedFd<'_>> {
        self.handle.completion_fd()
    }

    /// Waits at most that long: [`Status::Timeout`], naming the ranks that have not called it, while it goes
    /// on.
    pub fn wait_for(&self, timeout: Duration) -> Result<()> {
        self.handle.wait(Some(timeout))
    }

    /// Waits until it has completed and gives the memory back with what came out.
    pub fn wait(mut self) -> Result<(B, R)> {
        self.handle.wait(None)?;
        let result = R::of(&Completed(&self.handle, self.count))?;
        let memory = self.memory.take().ok_or_else(|| Error::new(Status::Internal, "the memory is gone"))?;
        Ok((memory, result))
    }
}

impl<B: Send + 'static, R> Drop for Pending<B, R> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            if !self.handle.is_done() {
                self.handle.abandon(memory);
            }
        }
    }
}

/// Where operations on borrowed memory run: see [`Context::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    context: &'scope Context,
    handles: Mutex<Vec<Handle>>,
    // Invariant, so that a borrow can be made neither longer nor shorter than the scope.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// The submission's views must be borrowed for 'scope: the methods that call this see to it.
    pub(crate) fn start<R: Outcome>(&'scope self, s: &Submission<'_>) -> Result<Op<'scope, R>> {
        let handle = submit(self.context, s)?;
        let mut handles = lock(&self.handles);
        if handles.len() >= 1024 {
            handles.retain(|handle| !handle.is_done());
        }
        handles.push(handle.clone());
        Ok(Op { handle, count: s.count, scope: PhantomData, result: PhantomData })
    }
}

impl Context {
    /// Runs `function`, in which operations on borrowed memory can be started that overlap with each other
    /// and with whatever else it does. Returns when all of them have completed, also if the function panics:
    /// until then their memory stays borrowed. Operations whose result nobody asked for are waited for as
    /// well; their failure is the failure of the generation, which the next call tells.
    ///
    /// ```no_run
    /// # fn f(context: &hvd::Context) -> hvd::Result<()> {
    /// let (mut a, mut b) = (vec![1.0f32; 1000], vec![2.0f64; 10]);
    /// context.scope(|s| {
    ///     let first = s.allreduce_in_place("a", &mut a)?;
    ///     let second = s.allreduce_in_place("b", &mut b)?;
    ///     first.wait()?;
    ///     second.wait()
    /// })?;
    /// println!("{} {}", a[0], b[0]);
    /// # Ok(()) }
    /// ```
    ///
    /// What is lent to an operation can't be used before the scope ends:
    ///
    /// ```compile_fail,E0499
    /// # fn f(context: &hvd::Context) -> hvd::Result<()> {
    /// let mut a = vec![1.0f32; 1000];
    /// context.scope(|s| {
    ///     let op = s.allreduce_in_place("a", &mut a)?;
    ///     std::mem::forget(op);
    ///     a[0] = 2.0; // the library may be writing it
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// Nor can memory be lent that lives shorter than the scope:
    ///
    /// ```compile_fail,E0597
    /// # fn f(context: &hvd::Context) -> hvd::Result<()> {
    /// context.scope(|s| {
    ///     let mut a = vec![1.0f32; 1000];
    ///     s.allreduce_in_place("a", &mut a)?.wait()
    /// })
    /// # }
    /// ```
    pub fn scope<'env, F, R>(&'env self, function: F) -> R
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    {
        struct Settle<'a>(&'a Mutex<Vec<Handle>>);
        impl Drop for Settle<'_> {
            fn drop(&mut self) {
                for handle in lock(self.0).drain(..) {
                    handle.settle();
                }
            }
        }
        let scope = Scope { context: self, handles: Mutex::default(), scope: PhantomData, env: PhantomData };
        let _settle = Settle(&scope.handles);
        function(&scope)
    }
}
