//! Which backends there are, and which one serves what.
use std::ptr;

use hvd_sys as sys;
use sys::Sized0;

use crate::context::Context;
use crate::error::{check, Result};
use crate::options::Options;
use crate::raw;
use crate::tensor::Dtype;

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Memory {
    /// The process's own.
    Host = sys::HVD_MEMORY_HOST,
    /// A CUDA device's.
    Cuda = sys::HVD_MEMORY_CUDA,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Collective {
    Broadcast = sys::HVD_COLLECTIVE_BROADCAST,
    Allreduce = sys::HVD_COLLECTIVE_ALLREDUCE,
    Allgather = sys::HVD_COLLECTIVE_ALLGATHER,
    Barrier = sys::HVD_COLLECTIVE_BARRIER,
    Reducescatter = sys::HVD_COLLECTIVE_REDUCESCATTER,
    Alltoall = sys::HVD_COLLECTIVE_ALLTOALL,
    Join = sys::HVD_COLLECTIVE_JOIN,
}

/// A backend to choose from: built in, or a module that was found.
#[derive(Clone, Debug)]
pub struct BackendReport {
    /// As the module says; of one that can't be loaded, as its file says.
    pub name: String,
    /// Of the library underneath.
    pub version: String,
    /// File of the module; "" for what is built in.
    pub path: String,
    /// It loads and says that it can serve here.
    pub usable: bool,
    /// Of `backend.h` that it and the library agree on; 0 if none.
    pub abi_version: u32,
    /// Bit `1 << memory` for each supported one.
    pub memories: u64,
    /// Bit `1 << dtype`.
    pub dtypes: u64,
    /// Bit `1 << collective`.
    pub collectives: u64,
    /// Fast inside a host by itself.
    pub local: bool,
    /// Contexts in one process that can use it; 0: any number.
    pub max_instances: i32,
    /// Why it is not usable.
    pub reason: String,
}

/// The backend that serves an operation, and why this one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BackendChoice {
    pub name: String,
    pub reason: String,
}

/// What there is to choose from, in the order in which it is searched. The modules are loaded for it, and
/// stay loaded.
pub fn backends(options: Option<&Options>) -> Result<Vec<BackendReport>> {
    let options = options.map_or(ptr::null(), |o| o.ptr.cast_const());
    let mut count = 0;
    // SAFETY: options are NULL or live through the call. Likewise below.
    check(|e| unsafe { sys::hvd_get_available_backend_count(options, &mut count, e) })?;
    (0..count)
        .map(|index| {
            let mut r = sys::hvd_available_backend_info::sized();
            // SAFETY: as above.
            check(|e| unsafe { sys::hvd_get_available_backend(options, index, &mut r, e) })?;
            Ok(BackendReport {
                name: raw::field(&r.name),
                version: raw::field(&r.version),
                path: raw::field(&r.path),
                usable: r.usable != 0,
                abi_version: r.abi_version,
                memories: r.memories,
                dtypes: r.dtypes,
                collectives: r.collectives,
                local: r.local != 0,
                max_instances: r.max_instances,
                reason: raw::field(&r.reason),
            })
        })
        .collect()
}

impl Context {
    /// Which backend serves an operation in the current generation, and why. Never blocks.
    pub fn backend_choice(
        &self,
        memory: Memory,
        dtype: Dtype,
        collective: Collective,
    ) -> Result<BackendChoice> {
        let context = self.get();
        let mut choice = sys::hvd_backend_choice_info::sized();
        // SAFETY: the handle lives as long as self.
        check(|e| unsafe {
            sys::hvd_get_backend_choice(
                context,
                memory as i32,
                dtype as i32,
                collective as i32,
                &mut choice,
                e,
            )
        })?;
        Ok(BackendChoice { name: raw::field(&choice.name), reason: raw::field(&choice.reason) })
    }
}
