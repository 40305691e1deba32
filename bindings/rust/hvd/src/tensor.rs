//! Element types and views of the program's memory.
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use hvd_sys as sys;
use sys::Sized0;

use crate::error::{Error, Result};
use crate::raw;

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum Dtype {
    /// u8
    Uint8 = sys::HVD_DTYPE_UINT8,
    /// i8
    Int8 = sys::HVD_DTYPE_INT8,
    /// u16
    Uint16 = sys::HVD_DTYPE_UINT16,
    /// i16
    Int16 = sys::HVD_DTYPE_INT16,
    /// u32
    Uint32 = sys::HVD_DTYPE_UINT32,
    /// i32
    Int32 = sys::HVD_DTYPE_INT32,
    /// u64
    Uint64 = sys::HVD_DTYPE_UINT64,
    /// i64
    Int64 = sys::HVD_DTYPE_INT64,
    /// [`F16`]
    Float16 = sys::HVD_DTYPE_FLOAT16,
    /// [`Bf16`]
    Bfloat16 = sys::HVD_DTYPE_BFLOAT16,
    /// f32
    Float32 = sys::HVD_DTYPE_FLOAT32,
    /// f64
    Float64 = sys::HVD_DTYPE_FLOAT64,
    /// [`Bool`]
    Bool = sys::HVD_DTYPE_BOOL,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        // SAFETY: a pure function.
        unsafe { sys::hvd_dtype_size(self as i32) }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: a static string for any value.
        f.write_str(unsafe { raw::static_text(sys::hvd_dtype_name(*self as i32)) })
    }
}

/// The name of a dtype that came from the library.
fn dtype_name(dtype: i32) -> &'static str {
    // SAFETY: a static string for any value.
    unsafe { raw::static_text(sys::hvd_dtype_name(dtype)) }
}

mod sealed {
    pub trait Sealed {}
}

/// What a tensor may consist of: types for which any bytes are a value. Sealed.
///
/// Anything else does not compile:
///
/// ```compile_fail,E0277
/// let view = hvd::View::from(&[true, false]); // Bool is
/// ```
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its dtype.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => { $(
        impl sealed::Sealed for $type {}
        impl Element for $type { const DTYPE: Dtype = Dtype::$dtype; }
    )* };
}
elements!(u8 => Uint8, i8 => Int8, u16 => Uint16, i16 => Int16, u32 => Uint32, i32 => Int32, u64 => Uint64,
          i64 => Int64, F16 => Float16, Bf16 => Bfloat16, f32 => Float32, f64 => Float64, Bool => Bool);

/// An IEEE 754 half, by its bits: make them of another crate's type, or of an f32 by [`F16::from_f32`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

impl F16 {
    /// The nearest half, ties to even.
    pub fn from_f32(value: f32) -> F16 {
        let bits = value.to_bits();
        let sign = ((bits >> 16) & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        if magnitude > 0x7f80_0000 {
            return F16(sign | 0x7e00); // not a number
        }
        if magnitude >= 0x4780_0000 {
            return F16(sign | 0x7c00); // 65536 and more, infinity
        }
        if magnitude < 0x3880_0000 {
            // Below 2^-14 halves are multiples of 2^-24: adding a half's step to 0.5 lets the hardware round.
            let rounded = f32::from_bits(magnitude) + 0.5;
            return F16(sign | (rounded.to_bits() - 0.5f32.to_bits()) as u16);
        }
        // A carry out of the fraction raises the exponent, to infinity at last.
        let rounded = magnitude - 0x3800_0000 + 0x0fff + ((magnitude >> 13) & 1);
        F16(sign | (rounded >> 13) as u16)
    }

    /// The same value.
    pub fn to_f32(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let exponent = u32::from(self.0 >> 10) & 0x1f;
        let fraction = u32::from(self.0) & 0x3ff;
        let magnitude = match exponent {
            0 => (fraction as f32 * 2f32.powi(-24)).to_bits(),
            31 => 0x7f80_0000 | fraction << 13,
            _ => (exponent + 112) << 23 | fraction << 13,
        };
        f32::from_bits(sign | magnitude)
    }
}

/// The upper half of an f32, by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// The nearest one, ties to even.
    pub fn from_f32(value: f32) -> Bf16 {
        let bits = value.to_bits();
        if value.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }
    /// The same value.
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// A truth value of one byte, of which any but 0 is true: other languages' workers may send any byte, and a
/// Rust `bool` must be 0 or 1.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// As a `bool`.
    pub fn get(self) -> bool {
        self.0 != 0
    }
}
impl From<bool> for Bool {
    fn from(value: bool) -> Bool {
        Bool(u8::from(value))
    }
}
impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        self.get() == other.get()
    }
}
impl Eq for Bool {}

/// A borrowed tensor that is read. Made from slices (one dimension), or with a shape by [`View::new`].
///
/// What was freed can't be lent:
///
/// ```compile_fail,E0505
/// # fn f(context: &hvd::Context) -> hvd::Result<()> {
/// let (a, mut sum) = (vec![1.0f32; 1000], vec![0.0f32; 1000]);
/// let view = hvd::View::from(&a);
/// drop(a);
/// context.allreduce("a", view, &mut sum)
/// # }
/// ```
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct View<'a> {
    raw: sys::hvd_tensor,
    memory: PhantomData<&'a [u8]>,
}

/// A borrowed tensor that is written. Made from slices (one dimension), or with a shape by [`ViewMut::new`].
#[repr(transparent)]
pub struct ViewMut<'a> {
    raw: sys::hvd_tensor,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: they are borrows of slices of plain numbers, which may be sent and shared.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}
// SAFETY: as above.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for ViewMut<'_> {}

fn describe<T: Element>(data: *mut c_void, length: usize, shape: &[usize]) -> Result<sys::hvd_tensor> {
    if shape.len() > sys::HVD_MAX_DIMS {
        return Err(Error::invalid(format!(
            "shape {shape:?} has {} dimensions: expected at most {}",
            shape.len(),
            sys::HVD_MAX_DIMS
        )));
    }
    let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    if elements != Some(length) {
        return Err(Error::invalid(format!("shape {shape:?} does not fit a slice of {length} elements")));
    }
    let mut tensor = sys::hvd_tensor::sized();
    tensor.data = data;
    tensor.dtype = T::DTYPE as i32;
    tensor.ndim = shape.len() as i32;
    for (target, &n) in tensor.shape.iter_mut().zip(shape) {
        *target = n as i64;
    }
    Ok(tensor)
}

/// One dimension.
fn flat<T: Element>(data: *mut c_void, length: usize) -> sys::hvd_tensor {
    let mut tensor = sys::hvd_tensor::sized();
    tensor.data = data;
    tensor.dtype = T::DTYPE as i32;
    tensor.ndim = 1;
    tensor.shape[0] = length as i64;
    tensor
}

/// A tensor in a device's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    /// Its address there.
    pub data: *mut c_void,
    /// Type of its elements.
    pub dtype: Dtype,
    /// The device's number, as this process sees it.
    pub device: i32,
    /// A CUstream or cudaStream_t; NULL: the default stream. The library's work runs in its order.
    pub stream: *mut c_void,
}

impl DeviceMemory {
    fn describe(self, shape: &[usize]) -> Result<sys::hvd_tensor> {
        let length = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let mut raw = describe::<u8>(self.data, length.unwrap_or(0), shape)?;
        raw.dtype = self.dtype as i32;
        raw.memory = sys::HVD_MEMORY_CUDA;
        raw.device = self.device;
        raw.stream = self.stream;
        Ok(raw)
    }
}

/// Strides, in elements, must be those of a dense row-major tensor; where there is one index they don't
/// matter.
fn check_strides(shape: &[usize], strides: &[usize]) -> Result<()> {
    let mut expected = vec![0; shape.len()];
    let mut product = 1usize;
    for (at, &n) in shape.iter().enumerate().rev() {
        expected[at] = product;
        product = product.saturating_mul(n.max(1));
    }
    let fits = strides.len() == shape.len()
        && (0..shape.len()).all(|at| shape[at] <= 1 || strides[at] == expected[at]);
    if fits || shape.contains(&0) && strides.len() == shape.len() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a tensor of shape {shape:?} with strides {strides:?} is not contiguous: expected strides {expected:?}"
    )))
}

impl<'a> View<'a> {
    /// `shape` must have as many elements as `data`; an empty shape is a scalar.
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Result<View<'a>> {
        let raw = describe::<T>(data.as_ptr().cast_mut().cast(), data.len(), shape)?;
        Ok(View { raw, memory: PhantomData })
    }

    /// For arrays that know strides (in elements): an error unless they are contiguous and row-major.
    pub fn with_strides<T: Element>(data: &'a [T], shape: &[usize], strides: &[usize]) -> Result<View<'a>> {
        check_strides(shape, strides)?;
        View::new(data, shape)
    }

    /// A tensor that a device reads.
    ///
    /// # Safety
    /// `memory` holds as many elements as `shape` says, and is neither freed nor written until what runs on
    /// its stream after the operation has begun: nothing but the program knows who uses it.
    pub unsafe fn on_device(memory: DeviceMemory, shape: &[usize]) -> Result<View<'a>> {
        Ok(View { raw: memory.describe(shape)?, memory: PhantomData })
    }

    /// One number.
    pub fn scalar<T: Element>(value: &'a T) -> View<'a> {
        let mut raw = flat::<T>(std::ptr::from_ref(value).cast_mut().cast(), 1);
        raw.ndim = 0;
        View { raw, memory: PhantomData }
    }
}

impl<'a> ViewMut<'a> {
    /// `shape` must have as many elements as `data`; an empty shape is a scalar.
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<ViewMut<'a>> {
        let raw = describe::<T>(data.as_mut_ptr().cast(), data.len(), shape)?;
        Ok(ViewMut { raw, memory: PhantomData })
    }

    /// For arrays that know strides (in elements): an error unless they are contiguous and row-major.
    pub fn with_strides<T: Element>(
        data: &'a mut [T],
        shape: &[usize],
        strides: &[usize],
    ) -> Result<ViewMut<'a>> {
        check_strides(shape, strides)?;
        ViewMut::new(data, shape)
    }

    /// A tensor that a device writes.
    ///
    /// # Safety
    /// As for [`View::on_device`]; nobody else reads or writes it meanwhile. In a [`crate::State`] it stays
    /// where it is until the state is dropped, as does the stream.
    pub unsafe fn on_device(memory: DeviceMemory, shape: &[usize]) -> Result<ViewMut<'a>> {
        Ok(ViewMut { raw: memory.describe(shape)?, memory: PhantomData })
    }

    /// One number.
    pub fn scalar<T: Element>(value: &'a mut T) -> ViewMut<'a> {
        let mut raw = flat::<T>(std::ptr::from_mut(value).cast(), 1);
        raw.ndim = 0;
        ViewMut { raw, memory: PhantomData }
    }

    pub(crate) fn raw(&self) -> sys::hvd_tensor {
        self.raw
    }
}

macro_rules! debug_view {
    ($($name:ident),*) => { $(
        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let dtype = dtype_name(self.raw.dtype);
                write!(f, "{}({dtype}, {:?})", stringify!($name), &self.raw.shape[..self.raw.ndim as usize])
            }
        }
    )* };
}
debug_view!(View, ViewMut);

impl<'a, T: Element> From<&'a [T]> for View<'a> {
    fn from(data: &'a [T]) -> View<'a> {
        let raw = flat::<T>(data.as_ptr().cast_mut().cast(), data.len());
        View { raw, memory: PhantomData }
    }
}
impl<'a, T: Element, const N: usize> From<&'a [T; N]> for View<'a> {
    fn from(data: &'a [T; N]) -> View<'a> {
        data.as_slice().into()
    }
}
impl<'a, T: Element> From<&'a Vec<T>> for View<'a> {
    fn from(data: &'a Vec<T>) -> View<'a> {
        data.as_slice().into()
    }
}
impl<'a, T: Element> From<&'a mut [T]> for ViewMut<'a> {
    fn from(data: &'a mut [T]) -> ViewMut<'a> {
        let raw = flat::<T>(data.as_mut_ptr().cast(), data.len());
        ViewMut { raw, memory: PhantomData }
    }
}
impl<'a, T: Element, const N: usize> From<&'a mut [T; N]> for ViewMut<'a> {
    fn from(data: &'a mut [T; N]) -> ViewMut<'a> {
        data.as_mut_slice().into()
    }
}
impl<'a, T: Element> From<&'a mut Vec<T>> for ViewMut<'a> {
    fn from(data: &'a mut Vec<T>) -> ViewMut<'a> {
        data.as_mut_slice().into()
    }
}

/// Bytes of a tensor that was described by us or by the library.
pub(crate) fn bytes_of(tensor: &sys::hvd_tensor) -> usize {
    elements_of(tensor) * dtype_size(tensor.dtype)
}

pub(crate) fn elements_of(tensor: &sys::hvd_tensor) -> usize {
    tensor.shape[..tensor.ndim as usize].iter().map(|&n| n as usize).product()
}

fn dtype_size(dtype: i32) -> usize {
    // SAFETY: a pure function.
    unsafe { sys::hvd_dtype_size(dtype) }
}

/// The elements of a tensor that the library holds.
pub(crate) fn slice_of<'a, T: Element>(tensor: &sys::hvd_tensor) -> Result<&'a [T]> {
    if tensor.dtype != T::DTYPE as i32 {
        return Err(Error::invalid(format!(
            "the tensor's dtype is {}: it can't be had as {}",
            dtype_name(tensor.dtype),
            T::DTYPE
        )));
    }
    let length = elements_of(tensor);
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: the library's memory, aligned for every dtype, of as many elements as it says; any bytes are a
    // T.
    Ok(unsafe { std::slice::from_raw_parts(tensor.data.cast::<T>(), length) })
}
