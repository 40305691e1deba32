//! The collectives: blocking on a [`Context`], overlapping in a [`Scope`], and owning their memory.
use std::ffi::c_void;
use std::ptr;

use hvd_sys as sys;

use crate::call::Call;
use crate::context::Context;
use crate::error::{check, Result};
use crate::operation::{
    run, submit, Buffer, Exchange, LastJoined, Op, Outcome, Pending, Rows, Scope, Submission,
};
use crate::raw::Name;
use crate::tensor::{Element, View, ViewMut};

const NO_INPUTS: &[View<'static>] = &[];
const NO_OUTPUTS: &[ViewMut<'static>] = &[];

/// The output's tensors as inputs too.
fn as_inputs<'a>(outputs: &'a [ViewMut<'a>]) -> &'a [View<'a>] {
    // SAFETY: both are a hvd_tensor and nothing else; the library takes the same memory for both.
    unsafe { std::slice::from_raw_parts(outputs.as_ptr().cast(), outputs.len()) }
}

/// Defines each collective twice: blocking on Context, and in a Scope, where memory is borrowed for 'scope.
macro_rules! collectives {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ident),*) -> $result:ty {
            ($collective:expr, $root:expr, $inputs:expr, $outputs:expr, $count:expr)
        }
    )*) => {
        impl Context { $(
            $(#[$doc])*
            pub fn $name<'a>(&self, call: impl Into<Call<'a>>, $($arg: collectives!(@type $kind 'a)),*) -> Result<$result> {
                $(collectives!(@bind $kind $arg);)*
                run(self, &Submission { collective: $collective, call: call.into(), root: $root,
                                        inputs: $inputs, outputs: $outputs, count: $count })
            }
        )* }
        /// Each is the [`Context`]'s method of that name, started: what is lent to it stays borrowed until
        /// the scope ends.
        impl<'scope, 'env> Scope<'scope, 'env> { $(
            #[doc = concat!("Starts [`Context::", stringify!($name), "`].")]
            pub fn $name<'a>(&'scope self, call: impl Into<Call<'a>>, $($arg: collectives!(@type $kind 'scope)),*)
                -> Result<Op<'scope, $result>> {
                $(collectives!(@bind $kind $arg);)*
                self.start(&Submission { collective: $collective, call: call.into(), root: $root,
                                         inputs: $inputs, outputs: $outputs, count: $count })
            }
        )* }
    };
    (@type input $life:lifetime) => { impl Into<View<$life>> };
    (@type output $life:lifetime) => { impl Into<ViewMut<$life>> };
    (@type inputs $life:lifetime) => { impl IntoIterator<Item = View<$life>> };
    (@type outputs $life:lifetime) => { impl IntoIterator<Item = ViewMut<$life>> };
    (@type root $life:lifetime) => { i32 };
    (@bind input $arg:ident) => { let $arg = &[$arg.into()]; };
    (@bind output $arg:ident) => { let $arg = &[$arg.into()]; };
    (@bind inputs $arg:ident) => {
        let $arg = $arg.into_iter().collect::<Vec<_>>();
        let $arg = $arg.as_slice();
    };
    (@bind outputs $arg:ident) => { collectives!(@bind inputs $arg) };
    (@bind root $arg:ident) => {};
}

collectives! {
    /// Combines all ranks' inputs; every rank gets the same bits. Same dtype and shape everywhere.
    fn allreduce(input: input, output: output) -> () {
        (sys::HVD_COLLECTIVE_ALLREDUCE, 0, input, output, 1)
    }
    /// [`Context::allreduce`] that replaces the input.
    fn allreduce_in_place(data: output) -> () {
        (sys::HVD_COLLECTIVE_ALLREDUCE, 0, as_inputs(data), data, 1)
    }
    /// Several tensors as one operation; dtypes and shapes may differ among them.
    fn grouped_allreduce(inputs: inputs, outputs: outputs) -> () {
        (sys::HVD_COLLECTIVE_ALLREDUCE, 0, same_count(inputs, outputs)?, outputs, inputs.len())
    }
    /// [`Context::grouped_allreduce`] that replaces the inputs.
    fn grouped_allreduce_in_place(data: outputs) -> () {
        (sys::HVD_COLLECTIVE_ALLREDUCE, 0, as_inputs(data), data, data.len())
    }
    /// Copies root's tensor into every other rank's.
    fn broadcast(data: output, root: root) -> () {
        (sys::HVD_COLLECTIVE_BROADCAST, root, NO_INPUTS, data, 1)
    }
    /// Several tensors of root's as one operation.
    fn broadcast_variables(data: outputs, root: root) -> () {
        (sys::HVD_COLLECTIVE_BROADCAST, root, NO_INPUTS, data, data.len())
    }
    /// Concatenates all ranks' inputs along the first dimension, in rank order. First dimensions may differ.
    fn allgather(input: input) -> Buffer {
        (sys::HVD_COLLECTIVE_ALLGATHER, 0, input, NO_OUTPUTS, 1)
    }
    /// [`Context::allgather`] into the program's memory, whose shape tells the room.
    fn allgather_into(input: input, output: output) -> Rows {
        (sys::HVD_COLLECTIVE_ALLGATHER, 0, input, output, 1)
    }
    /// Several allgathers as one operation.
    fn grouped_allgather(inputs: inputs) -> Vec<Buffer> {
        (sys::HVD_COLLECTIVE_ALLGATHER, 0, inputs, NO_OUTPUTS, inputs.len())
    }
    /// Reduces and gives each rank its share of the rows: evenly, or as [`Call::splits`] says.
    fn reducescatter(input: input) -> Buffer {
        (sys::HVD_COLLECTIVE_REDUCESCATTER, 0, input, NO_OUTPUTS, 1)
    }
    /// [`Context::reducescatter`] into the program's memory, whose shape tells the room.
    fn reducescatter_into(input: input, output: output) -> Rows {
        (sys::HVD_COLLECTIVE_REDUCESCATTER, 0, input, output, 1)
    }
    /// Sends rows of the input to each rank ([`Call::splits`], else evenly) and concatenates what comes.
    fn alltoall(input: input) -> Exchange {
        (sys::HVD_COLLECTIVE_ALLTOALL, 0, input, NO_OUTPUTS, 1)
    }
    /// [`Context::alltoall`] into the program's memory, whose shape tells the room.
    fn alltoall_into(input: input, output: output) -> Exchange<Rows> {
        (sys::HVD_COLLECTIVE_ALLTOALL, 0, input, output, 1)
    }
    /// Sends a tensor to one rank, which receives it under the same name. The two match alone; dtype and
    /// shape agree.
    fn send(data: input, to: root) -> () {
        (sys::HVD_COLLECTIVE_SEND, to, data, NO_OUTPUTS, 1)
    }
    /// Receives what [`Context::send`] of that rank sends under the same name.
    fn receive(data: output, from: root) -> () {
        (sys::HVD_COLLECTIVE_RECEIVE, from, NO_INPUTS, data, 1)
    }
    /// [`Context::allreduce`] whose result root alone gets; the others' output stays as it is.
    fn reduce(input: input, output: output, root: root) -> () {
        (sys::HVD_COLLECTIVE_REDUCE, root, input, output, 1)
    }
    /// Concatenates all ranks' inputs on root, in rank order, and says how many rows came from each. The
    /// others get nothing: no rows.
    fn gather(input: input, root: root) -> Exchange {
        (sys::HVD_COLLECTIVE_GATHER, root, input, NO_OUTPUTS, 1)
    }
    /// Deals the rows of root's input out to all ranks, evenly or as root's [`Call::splits`] says. The
    /// others' input is not looked at: it may be empty.
    fn scatter(input: input, output: output, root: root) -> Rows {
        (sys::HVD_COLLECTIVE_SCATTER, root, input, output, 1)
    }
    /// Returns when every rank has called it.
    fn barrier() -> () {
        (sys::HVD_COLLECTIVE_BARRIER, 0, NO_INPUTS, NO_OUTPUTS, 0)
    }
    /// For ranks that run out of data before the others: until every rank has joined, the others' operations
    /// do without this one. The call's name is not used; the wait is bounded by a day unless
    /// [`Call::timeout`] is given.
    fn join() -> LastJoined {
        (sys::HVD_COLLECTIVE_JOIN, 0, NO_INPUTS, NO_OUTPUTS, 0)
    }
}

fn same_count<'a>(inputs: &'a [View<'a>], outputs: &[ViewMut<'_>]) -> Result<&'a [View<'a>]> {
    if inputs.len() == outputs.len() {
        return Ok(inputs);
    }
    Err(crate::Error::invalid(format!(
        "a group of {} inputs and {} outputs: expected as many of both",
        inputs.len(),
        outputs.len()
    )))
}

impl Context {
    /// Broadcasts bytes whose length only the root knows: what is in `data` on root, and replaces it on the
    /// others.
    pub fn broadcast_object(&self, name: &str, data: &mut Vec<u8>, root: i32) -> Result<()> {
        let (context, name) = (self.get(), Name::new("name", name)?);
        let is_root = self.rank()? == root;
        let mut memory: *mut c_void = if is_root { data.as_mut_ptr().cast() } else { ptr::null_mut() };
        let mut size = if is_root { data.len() } else { 0 };
        // SAFETY: on root the memory is read during the call; elsewhere it is set to memory of the library.
        check(|e| unsafe {
            sys::hvd_broadcast_object(context, name.as_ptr(), &mut memory, &mut size, root, e)
        })?;
        if is_root {
            return Ok(());
        }
        data.clear();
        if size > 0 {
            // SAFETY: size bytes that are ours to free.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), size) });
        }
        // SAFETY: as above; NULL is allowed.
        unsafe { sys::hvd_free(memory) };
        Ok(())
    }

    /// Every rank's bytes, of any length each, in rank order.
    pub fn allgather_object(&self, name: &str, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        let name = Name::new("name", name)?;
        self.objects(|context, memory, sizes, count, e| {
            // SAFETY: data are read during the call, at most count sizes are written.
            unsafe {
                sys::hvd_allgather_object(
                    context,
                    name.as_ptr(),
                    data.as_ptr().cast(),
                    data.len(),
                    memory,
                    sizes,
                    count,
                    e,
                )
            }
        })
    }

    /// [`Context::allgather_object`] for root alone: the others get an empty entry for each rank.
    pub fn gather_object(&self, name: &str, data: &[u8], root: i32) -> Result<Vec<Vec<u8>>> {
        let name = Name::new("name", name)?;
        self.objects(|context, memory, sizes, count, e| {
            // SAFETY: as above.
            unsafe {
                sys::hvd_gather_object(
                    context,
                    name.as_ptr(),
                    data.as_ptr().cast(),
                    data.len(),
                    memory,
                    sizes,
                    count,
                    root,
                    e,
                )
            }
        })
    }

    fn objects(
        &self,
        function: impl FnOnce(
            *mut sys::hvd_context,
            *mut *mut c_void,
            *mut usize,
            usize,
            *mut sys::hvd_error,
        ) -> i32,
    ) -> Result<Vec<Vec<u8>>> {
        let mut sizes = vec![0usize; self.size()? as usize];
        let mut memory: *mut c_void = ptr::null_mut();
        check(|e| function(self.get(), &mut memory, sizes.as_mut_ptr(), sizes.len(), e))?;
        let mut at = memory.cast::<u8>();
        let objects = sizes
            .iter()
            .map(|&size| {
                if size == 0 {
                    return Vec::new();
                }
                // SAFETY: the sizes are those of what lies there, one after the other.
                let object = unsafe { std::slice::from_raw_parts(at, size) }.to_vec();
                // SAFETY: as above.
                at = unsafe { at.add(size) };
                object
            })
            .collect();
        // SAFETY: ours to free; NULL is allowed.
        unsafe { sys::hvd_free(memory) };
        Ok(objects)
    }

    fn start<B: Send + 'static, R: Outcome>(
        &self,
        mut memory: B,
        submission: impl for<'m> FnOnce(&'m mut B) -> Submit<'m>,
        call: Call<'_>,
    ) -> Result<Pending<B, R>> {
        let (handle, count) = {
            let s = submission(&mut memory);
            let inputs = if s.in_place { as_inputs(&s.outputs) } else { &s.inputs };
            let count = s.inputs.len().max(s.outputs.len());
            let submission = Submission {
                collective: s.collective,
                call,
                root: s.root,
                inputs,
                outputs: &s.outputs,
                count,
            };
            (submit(self, &submission)?, count)
        };
        // The elements of a Vec stay where they are when the Vec is moved.
        Ok(Pending::new(handle, count, memory))
    }

    /// Starts an allreduce of memory that the operation owns; [`Pending::wait`] gives it back.
    pub fn start_allreduce<'a, T: Element>(
        &self,
        call: impl Into<Call<'a>>,
        data: Vec<T>,
    ) -> Result<Pending<Vec<T>, ()>> {
        self.start(data, |d| Submit::in_place(sys::HVD_COLLECTIVE_ALLREDUCE, vec![d.into()]), call.into())
    }

    /// Starts an allreduce of a group that the operation owns.
    pub fn start_grouped_allreduce<'a, T: Element>(
        &self,
        call: impl Into<Call<'a>>,
        data: Vec<Vec<T>>,
    ) -> Result<Pending<Vec<Vec<T>>, ()>> {
        self.start(
            data,
            |d| Submit::in_place(sys::HVD_COLLECTIVE_ALLREDUCE, d.iter_mut().map(ViewMut::from).collect()),
            call.into(),
        )
    }

    /// Starts a broadcast of memory that the operation owns.
    pub fn start_broadcast<'a, T: Element>(
        &self,
        call: impl Into<Call<'a>>,
        data: Vec<T>,
        root: i32,
    ) -> Result<Pending<Vec<T>, ()>> {
        self.start(
            data,
            |d| Submit {
                root,
                in_place: false,
                ..Submit::in_place(sys::HVD_COLLECTIVE_BROADCAST, vec![d.into()])
            },
            call.into(),
        )
    }

    /// Starts an allgather of memory that the operation owns.
    pub fn start_allgather<'a, T: Element>(
        &self,
        call: impl Into<Call<'a>>,
        data: Vec<T>,
    ) -> Result<Pending<Vec<T>, Buffer>> {
        self.start(data, |d| Submit::of(sys::HVD_COLLECTIVE_ALLGATHER, vec![(&*d).into()]), call.into())
    }

    /// Starts a reducescatter of memory that the operation owns.
    pub fn start_reducescatter<'a, T: Element>(
        &self,
        call: impl Into<Call<'a>>,
        data: Vec<T>,
    ) -> Result<Pending<Vec<T>, Buffer>> {
        self.start(data, |d| Submit::of(sys::HVD_COLLECTIVE_REDUCESCATTER, vec![(&*d).into()]), call.into())
    }

    /// Starts an alltoall of memory that the operation owns.
    pub fn start_alltoall<'a, T: Element>(
        &self,
        call: impl Into<Call<'a>>,
        data: Vec<T>,
    ) -> Result<Pending<Vec<T>, Exchange>> {
        self.start(data, |d| Submit::of(sys::HVD_COLLECTIVE_ALLTOALL, vec![(&*d).into()]), call.into())
    }

    /// Starts a barrier.
    pub fn start_barrier<'a>(&self, call: impl Into<Call<'a>>) -> Result<Pending<(), ()>> {
        self.start((), |()| Submit::of(sys::HVD_COLLECTIVE_BARRIER, Vec::new()), call.into())
    }

    /// Starts a join.
    pub fn start_join<'a>(&self, call: impl Into<Call<'a>>) -> Result<Pending<(), LastJoined>> {
        self.start((), |()| Submit::of(sys::HVD_COLLECTIVE_JOIN, Vec::new()), call.into())
    }
}

/// Views of the memory that an operation owns.
struct Submit<'m> {
    collective: i32,
    root: i32,
    inputs: Vec<View<'m>>,
    outputs: Vec<ViewMut<'m>>,
    in_place: bool,
}

impl<'m> Submit<'m> {
    fn of(collective: i32, inputs: Vec<View<'m>>) -> Submit<'m> {
        Submit { collective, root: 0, inputs, outputs: Vec::new(), in_place: false }
    }
    fn in_place(collective: i32, outputs: Vec<ViewMut<'m>>) -> Submit<'m> {
        Submit { collective, root: 0, inputs: Vec::new(), outputs, in_place: true }
    }
}
