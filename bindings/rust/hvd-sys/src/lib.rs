//! The C API of libhvd as it is: `hvd.h` and `driver.h`, which document every name here. Programs use the
//! safe crate `hvd`.
//!
//! The bindings are made from the headers by libhvd's `scripts/api/make.py` and committed: building needs no
//! bindgen. Their layout tests run with `cargo test`.
#![allow(non_camel_case_types, non_snake_case)]

mod bindings {
    // Generated: the headers hold its documentation.
    #![allow(missing_docs, dead_code, deref_nullptr, clippy::all)]
    include!("bindings.rs");
}
pub use bindings::*;

/// A struct of the C API that begins with its size.
///
/// # Safety
/// The type must be valid when all its bytes are zero, and its first field must be `struct_size: usize`.
pub unsafe trait Sized0: Copy {
    /// All fields zero, which is every field's default, but the size.
    fn sized() -> Self {
        let mut value = std::mem::MaybeUninit::<Self>::zeroed();
        // SAFETY: the implementor promises that zero is valid and that a usize comes first.
        unsafe {
            value.as_mut_ptr().cast::<usize>().write(std::mem::size_of::<Self>());
            value.assume_init()
        }
    }
}

macro_rules! sized {
    ($($name:ident),*) => { $(
        // SAFETY: a C struct of integers, numbers and pointers that begins with struct_size.
        unsafe impl Sized0 for $name {}
    )* };
}
sized!(
    hvd_error,
    hvd_membership_info,
    hvd_backend_info,
    hvd_available_backend_info,
    hvd_backend_choice_info,
    hvd_tensor,
    hvd_process_set_info,
    hvd_request,
    hvd_state_info,
    hvd_sampler_options,
    hvd_sampler_batch,
    hvd_sampler_info,
    hvd_recovery_info,
    hvd_event,
    hvd_driver_status_info
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_begin_with_their_size() {
        assert_eq!(hvd_error::sized().struct_size, std::mem::size_of::<hvd_error>());
        assert_eq!(hvd_event::sized().struct_size, std::mem::size_of::<hvd_event>());
        let request = hvd_request::sized();
        assert!(request.name.is_null() && request.timeout_ns == 0 && request.prescale == 0.0);
    }

    #[test]
    fn the_loaded_library_is_the_one_that_was_bound() {
        // SAFETY: static strings that are never NULL.
        let (version, name) = unsafe {
            (
                std::ffi::CStr::from_ptr(hvd_version()),
                std::ffi::CStr::from_ptr(hvd_status_name(HVD_PEER_LOST)),
            )
        };
        assert_eq!(version.to_bytes_with_nul(), HVD_VERSION_STRING);
        assert_eq!(name.to_str(), Ok("HVD_PEER_LOST"));
    }
}
