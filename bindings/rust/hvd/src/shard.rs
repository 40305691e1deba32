//! Sharded state: one range of a flat vector on each rank, with copies in the commit memory of others.
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use hvd_sys as sys;

use crate::context::Context;
use crate::error::{check, Result};
use crate::raw::Name;
use crate::tensor::{Element, ViewMut};

/// (offset, length) of a rank's part of an even split: the first ranks have one element more where it does
/// not come out even.
pub fn shard_range(elements: i64, rank: i32, size: i32) -> Result<(i64, i64)> {
    let (mut offset, mut length) = (0, 0);
    // SAFETY: places for the results.
    check(|e| unsafe { sys::hvd_shard_range(elements, rank, size, &mut offset, &mut length, e) })?;
    Ok((offset, length))
}

type AddShard = unsafe extern "C" fn(
    *mut sys::hvd_state,
    *const c_char,
    *const sys::hvd_tensor,
    i64,
    i64,
    i32,
    sys::hvd_reshard_fn,
    *mut c_void,
    sys::hvd_destroy_fn,
    *mut sys::hvd_error,
) -> sys::hvd_status;

/// What others keep of a shard.
enum Kept {
    Copies(i32),
    Parity(i32),
}

struct Range<T> {
    data: Vec<T>,
    offset: i64,
    number: u64, // no other range of the process has it, also not one that comes to lie in its place
}

static RANGES: AtomicU64 = AtomicU64::new(1);

/// This rank's range of a sharded key: a slice, which is another one, of another length, after a change of
/// ranks.
///
/// Name it in a state by [`crate::Fields::shard`]. All elements are `T::default()` at first.
pub struct Shard<T: Element + Default> {
    elements: i64,
    kept: Kept,
    // The library's callback replaces what is within, during a call on the state, when nobody has a reference
    // to it.
    range: Box<UnsafeCell<Range<T>>>,
}

// SAFETY: the cell is written only through the exclusive borrow that a call on the state has.
unsafe impl<T: Element + Default> Sync for Shard<T> {}

impl<T: Element + Default> std::fmt::Debug for Shard<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shard({} from {} of {})", self.len(), self.offset(), self.elements)
    }
}

impl<T: Element + Default> Shard<T> {
    /// This rank's part of an even split of a vector of so many elements, which outlives the loss of `copies`
    /// workers at once (0: none).
    pub fn new(context: &Context, elements: i64, copies: u8) -> Result<Shard<T>> {
        let copies = if copies == 0 { sys::HVD_NO_COPIES } else { i32::from(copies) };
        Shard::keeping(context, elements, Kept::Copies(copies))
    }
    /// The same for 1 / `parity` (2 to 64) of a copy's memory: workers are in groups of `parity` + 1 or more,
    /// which keep each other's parity, and one of each group may be lost at once.
    pub fn with_parity(context: &Context, elements: i64, parity: u8) -> Result<Shard<T>> {
        Shard::keeping(context, elements, Kept::Parity(i32::from(parity)))
    }
    fn keeping(context: &Context, elements: i64, kept: Kept) -> Result<Shard<T>> {
        let (offset, length) = shard_range(elements, context.rank()?, context.size()?)?;
        let data = vec![T::default(); length as usize];
        let number = RANGES.fetch_add(1, Ordering::Relaxed);
        Ok(Shard { elements, kept, range: Box::new(UnsafeCell::new(Range { data, offset, number })) })
    }
    /// Elements of the whole vector.
    pub fn global_elements(&self) -> i64 {
        self.elements
    }
    /// Place of the first element of this range in the whole vector.
    pub fn offset(&self) -> i64 {
        // SAFETY: see the field.
        unsafe { (*self.range.get()).offset }
    }
}

impl<T: Element + Default> Deref for Shard<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: see the field.
        unsafe { &(*self.range.get()).data }
    }
}
impl<T: Element + Default> DerefMut for Shard<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: see the field.
        unsafe { &mut (*self.range.get()).data }
    }
}

unsafe extern "C" fn reshard<T: Element + Default>(userdata: *mut c_void, asked: *mut sys::hvd_shard) -> i32 {
    // SAFETY: userdata is the range of a shard that the state's value owns; the library has no use for the
    // old memory.
    let (range, asked) = unsafe { (&mut *userdata.cast::<Range<T>>(), &mut *asked) };
    let Ok(length) = usize::try_from(asked.elements) else { return 1 };
    range.data = vec![T::default(); length];
    range.offset = asked.offset;
    asked.data = range.data.as_mut_ptr().cast();
    0
}

/// A shard of whatever element type, as a field of a state.
pub(crate) trait AnyShard {
    fn address(&self) -> *mut c_void;
    fn number(&self) -> u64;
    fn add(&mut self, state: *mut sys::hvd_state, key: &Name) -> Result<()>;
}

impl<T: Element + Default> AnyShard for Shard<T> {
    fn address(&self) -> *mut c_void {
        self.range.get().cast()
    }
    fn number(&self) -> u64 {
        // SAFETY: see the field.
        unsafe { (*self.range.get()).number }
    }
    fn add(&mut self, state: *mut sys::hvd_state, key: &Name) -> Result<()> {
        let (elements, offset, userdata) = (self.elements, self.offset(), self.address());
        let (add, number) = match self.kept {
            Kept::Copies(copies) => (sys::hvd_state_add_shard as AddShard, copies),
            Kept::Parity(parity) => (sys::hvd_state_add_shard_with_parity as AddShard, parity),
        };
        let view = ViewMut::from(&mut **self);
        let tensor = view.raw();
        // SAFETY: the range lives as long as the state, which is destroyed before its value.
        check(|e| unsafe {
            add(state, key.as_ptr(), &tensor, elements, offset, number, Some(reshard::<T>), userdata, None, e)
        })
    }
}
