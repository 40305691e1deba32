//! Elastic distributed training: a job that survives the death, the hanging, the arrival and the departure
//! of workers, in the same processes, without losing committed work.
//!
//! A worker opens a [`Context`], puts what must survive into a [`State`] and gives its training function to
//! [`elastic::run`]. When a peer dies, the last commit is restored and the function is called again with
//! whoever is left; when hosts come or go the same happens with live values.
//!
//! ```no_run
//! use hvd::{elastic, Call, Context, Fields, State, Variables};
//!
//! struct Model { weights: Vec<f32>, step: i64 }
//!
//! impl Variables for Model {
//!     fn variables<'a>(&'a mut self, fields: &mut Fields<'a>) {
//!         fields.tensor("weights", &mut self.weights);
//!         fields.value("step", &mut self.step);
//!     }
//! }
//!
//! fn main() -> hvd::Result<()> {
//!     let context = Context::new()?;
//!     let mut state = State::new(&context, Model { weights: vec![0.0; 1000], step: 0 })?;
//!     elastic::run(&mut state, |model| -> hvd::Result<()> {
//!         while model.step < 2000 {
//!             let mut gradient = vec![1.0f32; model.weights.len()]; // ...
//!             context.allreduce_in_place(Call::named("gradient").average(), &mut gradient)?;
//!             for (w, g) in model.weights.iter_mut().zip(&gradient) { *w -= 0.1 * g; }
//!             model.step += 1;
//!             if model.step % 10 == 0 { model.commit()?; }
//!         }
//!         Ok(())
//!     })?;
//!     context.shutdown(None)
//! }
//! ```
//!
//! # Memory
//! No `unsafe` is needed (but to say where a device's memory is), and no safe program can make the library
//! touch memory that is not there:
//!
//! - **Blocking** collectives borrow their buffers for the call, and return only when the library is done
//!   with them.
//! - **Asynchronous** ones outlive a call. A handle that borrowed could be leaked by `mem::forget`, which
//!   ends the borrow while the library still writes. So operations on borrowed buffers live in a
//!   [`Context::scope`], which waits for all of them before it returns, as `std::thread::scope` does; the
//!   others ([`Pending`]) own their buffers, and a leaked one leaks them too.
//! - A [`State`] owns the program's value and hands the addresses of its fields to the library. Before each
//!   commit, restore, sync and step of the loop it asks for the fields again, under one exclusive borrow: if
//!   one of them has been moved or resized since, the call is an error ([`Status::Invalid`]), not a write
//!   into freed memory.
//! - After `fork`, every call in the child is an error: none of the library's threads is there.
//! - Panics don't cross the boundary: in a callback they become [`Status::CallbackFailed`] or are dropped.
#![warn(missing_docs)]

mod backend;
mod call;
mod collective;
mod context;
pub mod driver;
pub mod elastic;
mod error;
mod event;
mod fields;
mod object;
mod operation;
mod options;
mod raw;
mod sampler;
mod set;
mod shard;
mod state;
mod tensor;

pub use backend::{backends, BackendChoice, BackendReport, Collective, Memory};
pub use call::{Call, Reduction};
pub use context::{Backend, Context, Membership};
pub use error::{Error, Failure, Result, Status};
pub use event::{Event, EventKind, EventStream, Kinds, Listener};
pub use fields::{Fields, Plain, Variables};
pub use object::Object;
pub use operation::{Buffer, Exchange, LastJoined, Op, Pending, Rows, Scope};
pub use options::{LogLevel, OptionValue, Options};
pub use sampler::{Batch, Padding, Sampler, SamplerInfo, SamplerOptions};
pub use set::{ProcessSet, SetInfo, SetRule};
pub use shard::{shard_range, Shard};
pub use state::{State, StateStatistics};
pub use tensor::{Bf16, Bool, DeviceMemory, Dtype, Element, View, ViewMut, F16};

/// "major.minor.patch" of the library that is loaded.
pub fn version() -> &'static str {
    // SAFETY: a static string.
    unsafe { raw::static_text(hvd_sys::hvd_version()) }
}
