//! Process sets.
use std::ptr;

use hvd_sys as sys;
use sys::Sized0;

use crate::context::Context;
use crate::error::{check, Error, Result};
use crate::raw::c_string;

/// Who is in a set from the next generation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum SetRule {
    /// The same workers, whatever their ranks are then.
    Workers = sys::HVD_SET_RULE_WORKERS,
    /// The same rank numbers, as far as there are so many.
    Ranks = sys::HVD_SET_RULE_RANKS,
    /// All ranks of this worker's host; without a list of ranks.
    Local = sys::HVD_SET_RULE_LOCAL,
    /// All ranks with this worker's local rank; without a list of ranks.
    Cross = sys::HVD_SET_RULE_CROSS,
    /// Nobody.
    End = sys::HVD_SET_RULE_END,
}

/// A subset of the ranks, for collectives among them ([`crate::Call::on`]). Each member makes it by itself,
/// with the same name and members.
#[derive(Debug)]
pub struct ProcessSet {
    ptr: *mut sys::hvd_process_set,
    context: Context,
}

// SAFETY: "Functions may be called from any thread".
unsafe impl Send for ProcessSet {}
// SAFETY: as above.
unsafe impl Sync for ProcessSet {}

/// Place of this worker in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SetInfo {
    /// Among the members; -1 if this worker is none.
    pub rank: i32,
    pub size: i32,
    /// Among the members on this host.
    pub local_rank: i32,
    pub local_size: i32,
    /// Among the members with the same local rank on all hosts.
    pub cross_rank: i32,
    pub cross_size: i32,
    /// For which this holds.
    pub generation: u64,
}

impl ProcessSet {
    /// `ranks`: of the current generation, in any order; must be empty for [`SetRule::Local`] and
    /// [`SetRule::Cross`].
    pub fn new(context: &Context, name: &str, ranks: &[i32], rule: SetRule) -> Result<ProcessSet> {
        let name = c_string("name", name)?;
        let handle = context.get();
        let list = if ranks.is_empty() { ptr::null() } else { ranks.as_ptr() };
        let mut ptr = ptr::null_mut();
        // SAFETY: name and ranks are copied; ptr is a place for the result.
        check(|e| unsafe {
            sys::hvd_process_set_create(handle, name.as_ptr(), list, ranks.len(), rule as i32, &mut ptr, e)
        })?;
        Ok(ProcessSet { ptr, context: context.clone() })
    }

    /// The handle, for a call on `context`.
    pub(crate) fn get(&self, context: &Context) -> Result<*mut sys::hvd_process_set> {
        if !std::sync::Arc::ptr_eq(&self.context.inner, &context.inner) {
            return Err(Error::invalid("the process set belongs to another context"));
        }
        Ok(self.ptr)
    }

    /// Place of this worker in the set, in the current generation. Never blocks.
    pub fn info(&self) -> Result<SetInfo> {
        let mut info = sys::hvd_process_set_info::sized();
        // SAFETY: the handle is ours, and the context lives. Likewise below.
        check(|e| unsafe { sys::hvd_process_set_get_info(self.ptr, &mut info, e) })?;
        Ok(SetInfo {
            rank: info.rank,
            size: info.size,
            local_rank: info.local_rank,
            local_size: info.local_size,
            cross_rank: info.cross_rank,
            cross_size: info.cross_size,
            generation: info.generation,
        })
    }

    /// The members' ranks in the current generation, ascending.
    pub fn ranks(&self) -> Result<Vec<i32>> {
        let mut count = 0;
        // SAFETY: as above; NULL asks for the number alone.
        check(|e| unsafe { sys::hvd_process_set_get_ranks(self.ptr, ptr::null_mut(), &mut count, e) })?;
        let mut ranks = vec![0; count];
        // SAFETY: as above; count is the room.
        check(|e| unsafe { sys::hvd_process_set_get_ranks(self.ptr, ranks.as_mut_ptr(), &mut count, e) })?;
        ranks.truncate(count);
        Ok(ranks)
    }
}

impl Drop for ProcessSet {
    fn drop(&mut self) {
        // SAFETY: any handle may be given; operations under way go on.
        unsafe { sys::hvd_process_set_destroy(self.ptr) }
    }
}
