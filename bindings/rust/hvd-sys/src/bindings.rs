// Made from hvd.h and driver.h by scripts/bindings.sh: do not edit.

pub const HVD_VERSION_MAJOR: u32 = 0;
pub const HVD_VERSION_MINOR: u32 = 2;
pub const HVD_VERSION_PATCH: u32 = 0;
pub const HVD_VERSION_STRING: &[u8; 6usize] = b"0.2.0\0";
pub const HVD_ABI_VERSION: u32 = 1;
pub const HVD_MAX_DIMS: u32 = 8;
pub const HVD_SAMPLER_SAVED_BYTES: u32 = 64;
pub type __int32_t = ::std::os::raw::c_int;
pub type __uint32_t = ::std::os::raw::c_uint;
pub type __int64_t = ::std::os::raw::c_long;
pub type __uint64_t = ::std::os::raw::c_ulong;
pub type hvd_status = i32;
pub const HVD_OK: _bindgen_ty_1 = 0;
pub const HVD_PEER_LOST: _bindgen_ty_1 = 1;
pub const HVD_HOSTS_UPDATED: _bindgen_ty_1 = 2;
pub const HVD_MISMATCH: _bindgen_ty_1 = 3;
pub const HVD_INVALID: _bindgen_ty_1 = 4;
pub const HVD_TIMEOUT: _bindgen_ty_1 = 5;
pub const HVD_CLOSED: _bindgen_ty_1 = 6;
pub const HVD_REMOVED: _bindgen_ty_1 = 7;
pub const HVD_DRIVER_LOST: _bindgen_ty_1 = 8;
pub const HVD_REFUSED: _bindgen_ty_1 = 9;
pub const HVD_UNAVAILABLE: _bindgen_ty_1 = 10;
pub const HVD_UNSUPPORTED: _bindgen_ty_1 = 11;
pub const HVD_CALLBACK_FAILED: _bindgen_ty_1 = 12;
pub const HVD_JOB_FAILED: _bindgen_ty_1 = 13;
pub const HVD_INTERNAL: _bindgen_ty_1 = 14;
pub type _bindgen_ty_1 = ::std::os::raw::c_int;
extern "C" {
    pub fn hvd_status_name(status: hvd_status) -> *const ::std::os::raw::c_char;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_error {
    pub struct_size: usize,
    pub status: hvd_status,
    pub rank: i32,
    pub generation: u64,
    pub vendor_code: i64,
    pub backend: [::std::os::raw::c_char; 16usize],
    pub message: [::std::os::raw::c_char; 512usize],
}
#[test]
fn bindgen_test_layout_hvd_error() {
    assert_eq!(::std::mem::size_of::<hvd_error>(), 560usize, concat!("Size of: ", stringify!(hvd_error)));
    assert_eq!(::std::mem::align_of::<hvd_error>(), 8usize, concat!("Alignment of ", stringify!(hvd_error)));
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_error>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_error), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_status() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_error>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).status) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_error), "::", stringify!(status))
        );
    }
    test_field_status();
    fn test_field_rank() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_error>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).rank) as usize - ptr as usize
            },
            12usize,
            concat!("Offset of field: ", stringify!(hvd_error), "::", stringify!(rank))
        );
    }
    test_field_rank();
    fn test_field_generation() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_error>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).generation) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_error), "::", stringify!(generation))
        );
    }
    test_field_generation();
    fn test_field_vendor_code() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_error>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).vendor_code) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_error), "::", stringify!(vendor_code))
        );
    }
    test_field_vendor_code();
    fn test_field_backend() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_error>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).backend) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_error), "::", stringify!(backend))
        );
    }
    test_field_backend();
    fn test_field_message() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_error>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).message) as usize - ptr as usize
            },
            48usize,
            concat!("Offset of field: ", stringify!(hvd_error), "::", stringify!(message))
        );
    }
    test_field_message();
}
extern "C" {
    pub fn hvd_version() -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn hvd_free(memory: *mut ::std::os::raw::c_void);
}
pub type hvd_destroy_fn = ::std::option::Option<unsafe extern "C" fn(userdata: *mut ::std::os::raw::c_void)>;
pub type hvd_log_level = i32;
pub const HVD_LOG_DEFAULT: _bindgen_ty_2 = 0;
pub const HVD_LOG_TRACE: _bindgen_ty_2 = 1;
pub const HVD_LOG_DEBUG: _bindgen_ty_2 = 2;
pub const HVD_LOG_INFO: _bindgen_ty_2 = 3;
pub const HVD_LOG_WARNING: _bindgen_ty_2 = 4;
pub const HVD_LOG_ERROR: _bindgen_ty_2 = 5;
pub const HVD_LOG_OFF: _bindgen_ty_2 = 6;
pub type _bindgen_ty_2 = ::std::os::raw::c_int;
pub type hvd_log_fn = ::std::option::Option<
    unsafe extern "C" fn(
        userdata: *mut ::std::os::raw::c_void,
        level: hvd_log_level,
        message: *const ::std::os::raw::c_char,
    ),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_options {
    _unused: [u8; 0],
}
extern "C" {
    pub fn hvd_options_create(ret_options: *mut *mut hvd_options, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_options_destroy(options: *mut hvd_options);
}
extern "C" {
    pub fn hvd_options_set(
        options: *mut hvd_options,
        key: *const ::std::os::raw::c_char,
        text: *const ::std::os::raw::c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_options_set_int(
        options: *mut hvd_options,
        key: *const ::std::os::raw::c_char,
        value: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_options_set_duration(
        options: *mut hvd_options,
        key: *const ::std::os::raw::c_char,
        value_ns: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_options_set_bool(
        options: *mut hvd_options,
        key: *const ::std::os::raw::c_char,
        value: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_options_get(
        options: *mut hvd_options,
        key: *const ::std::os::raw::c_char,
        ret_text: *mut *const ::std::os::raw::c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_options_describe() -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn hvd_options_set_log(
        options: *mut hvd_options,
        level: hvd_log_level,
        log: hvd_log_fn,
        userdata: *mut ::std::os::raw::c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_context {
    _unused: [u8; 0],
}
extern "C" {
    pub fn hvd_init(
        options: *const hvd_options,
        ret_context: *mut *mut hvd_context,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_shutdown(context: *mut hvd_context, timeout_ns: i64, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_abort(
        context: *mut hvd_context,
        reason: *const ::std::os::raw::c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_destroy(context: *mut hvd_context);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_membership_info {
    pub struct_size: usize,
    pub rank: i32,
    pub size: i32,
    pub local_rank: i32,
    pub local_size: i32,
    pub cross_rank: i32,
    pub cross_size: i32,
    pub generation: u64,
    pub membership_epoch: u64,
    pub worker: u64,
}
#[test]
fn bindgen_test_layout_hvd_membership() {
    assert_eq!(
        ::std::mem::size_of::<hvd_membership_info>(),
        56usize,
        concat!("Size of: ", stringify!(hvd_membership_info))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_membership_info>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_membership_info))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_rank() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).rank) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(rank))
        );
    }
    test_field_rank();
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            12usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(size))
        );
    }
    test_field_size();
    fn test_field_local_rank() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).local_rank) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(local_rank))
        );
    }
    test_field_local_rank();
    fn test_field_local_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).local_size) as usize - ptr as usize
            },
            20usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(local_size))
        );
    }
    test_field_local_size();
    fn test_field_cross_rank() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cross_rank) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(cross_rank))
        );
    }
    test_field_cross_rank();
    fn test_field_cross_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cross_size) as usize - ptr as usize
            },
            28usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(cross_size))
        );
    }
    test_field_cross_size();
    fn test_field_generation() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).generation) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(generation))
        );
    }
    test_field_generation();
    fn test_field_membership_epoch() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).membership_epoch) as usize - ptr as usize
            },
            40usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(membership_epoch))
        );
    }
    test_field_membership_epoch();
    fn test_field_worker() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_membership_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).worker) as usize - ptr as usize
            },
            48usize,
            concat!("Offset of field: ", stringify!(hvd_membership_info), "::", stringify!(worker))
        );
    }
    test_field_worker();
}
extern "C" {
    pub fn hvd_get_membership(
        context: *mut hvd_context,
        ret_membership: *mut hvd_membership_info,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_rank(context: *mut hvd_context) -> i32;
}
extern "C" {
    pub fn hvd_size(context: *mut hvd_context) -> i32;
}
extern "C" {
    pub fn hvd_local_rank(context: *mut hvd_context) -> i32;
}
extern "C" {
    pub fn hvd_local_size(context: *mut hvd_context) -> i32;
}
extern "C" {
    pub fn hvd_cross_rank(context: *mut hvd_context) -> i32;
}
extern "C" {
    pub fn hvd_cross_size(context: *mut hvd_context) -> i32;
}
extern "C" {
    pub fn hvd_generation(context: *mut hvd_context) -> u64;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_backend_info {
    pub struct_size: usize,
    pub name: [::std::os::raw::c_char; 16usize],
    pub version: [::std::os::raw::c_char; 64usize],
    pub path: [::std::os::raw::c_char; 512usize],
    pub detail: [::std::os::raw::c_char; 256usize],
    pub dtypes: u64,
    pub collectives: u64,
}
#[test]
fn bindgen_test_layout_hvd_backend_information() {
    assert_eq!(
        ::std::mem::size_of::<hvd_backend_info>(),
        872usize,
        concat!("Size of: ", stringify!(hvd_backend_info))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_backend_info>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_backend_info))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_backend_info), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_name() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).name) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_backend_info), "::", stringify!(name))
        );
    }
    test_field_name();
    fn test_field_version() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).version) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_backend_info), "::", stringify!(version))
        );
    }
    test_field_version();
    fn test_field_path() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).path) as usize - ptr as usize
            },
            88usize,
            concat!("Offset of field: ", stringify!(hvd_backend_info), "::", stringify!(path))
        );
    }
    test_field_path();
    fn test_field_detail() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).detail) as usize - ptr as usize
            },
            600usize,
            concat!("Offset of field: ", stringify!(hvd_backend_info), "::", stringify!(detail))
        );
    }
    test_field_detail();
    fn test_field_dtypes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).dtypes) as usize - ptr as usize
            },
            856usize,
            concat!("Offset of field: ", stringify!(hvd_backend_info), "::", stringify!(dtypes))
        );
    }
    test_field_dtypes();
    fn test_field_collectives() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).collectives) as usize - ptr as usize
            },
            864usize,
            concat!("Offset of field: ", stringify!(hvd_backend_info), "::", stringify!(collectives))
        );
    }
    test_field_collectives();
}
extern "C" {
    pub fn hvd_get_backend(
        context: *mut hvd_context,
        ret_info: *mut hvd_backend_info,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_backend_name(context: *mut hvd_context) -> *const ::std::os::raw::c_char;
}
pub type hvd_dtype = i32;
pub const HVD_DTYPE_UINT8: _bindgen_ty_3 = 1;
pub const HVD_DTYPE_INT8: _bindgen_ty_3 = 2;
pub const HVD_DTYPE_UINT16: _bindgen_ty_3 = 3;
pub const HVD_DTYPE_INT16: _bindgen_ty_3 = 4;
pub const HVD_DTYPE_UINT32: _bindgen_ty_3 = 5;
pub const HVD_DTYPE_INT32: _bindgen_ty_3 = 6;
pub const HVD_DTYPE_UINT64: _bindgen_ty_3 = 7;
pub const HVD_DTYPE_INT64: _bindgen_ty_3 = 8;
pub const HVD_DTYPE_FLOAT16: _bindgen_ty_3 = 9;
pub const HVD_DTYPE_BFLOAT16: _bindgen_ty_3 = 10;
pub const HVD_DTYPE_FLOAT32: _bindgen_ty_3 = 11;
pub const HVD_DTYPE_FLOAT64: _bindgen_ty_3 = 12;
pub const HVD_DTYPE_BOOL: _bindgen_ty_3 = 13;
pub type _bindgen_ty_3 = ::std::os::raw::c_int;
extern "C" {
    pub fn hvd_dtype_size(dtype: hvd_dtype) -> usize;
}
extern "C" {
    pub fn hvd_dtype_name(dtype: hvd_dtype) -> *const ::std::os::raw::c_char;
}
pub type hvd_memory = i32;
pub const HVD_MEMORY_HOST: _bindgen_ty_4 = 0;
pub const HVD_MEMORY_CUDA: _bindgen_ty_4 = 1;
pub type _bindgen_ty_4 = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_tensor {
    pub struct_size: usize,
    pub data: *mut ::std::os::raw::c_void,
    pub dtype: hvd_dtype,
    pub ndim: i32,
    pub shape: [i64; 8usize],
    pub memory: hvd_memory,
    pub device: i32,
    pub stream: *mut ::std::os::raw::c_void,
}
#[test]
fn bindgen_test_layout_hvd_tensor() {
    assert_eq!(::std::mem::size_of::<hvd_tensor>(), 104usize, concat!("Size of: ", stringify!(hvd_tensor)));
    assert_eq!(
        ::std::mem::align_of::<hvd_tensor>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_tensor))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_tensor>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_tensor), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_data() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_tensor>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).data) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_tensor), "::", stringify!(data))
        );
    }
    test_field_data();
    fn test_field_dtype() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_tensor>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).dtype) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_tensor), "::", stringify!(dtype))
        );
    }
    test_field_dtype();
    fn test_field_ndim() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_tensor>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).ndim) as usize - ptr as usize
            },
            20usize,
            concat!("Offset of field: ", stringify!(hvd_tensor), "::", stringify!(ndim))
        );
    }
    test_field_ndim();
    fn test_field_shape() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_tensor>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).shape) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_tensor), "::", stringify!(shape))
        );
    }
    test_field_shape();
    fn test_field_memory() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_tensor>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).memory) as usize - ptr as usize
            },
            88usize,
            concat!("Offset of field: ", stringify!(hvd_tensor), "::", stringify!(memory))
        );
    }
    test_field_memory();
    fn test_field_device() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_tensor>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).device) as usize - ptr as usize
            },
            92usize,
            concat!("Offset of field: ", stringify!(hvd_tensor), "::", stringify!(device))
        );
    }
    test_field_device();
    fn test_field_stream() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_tensor>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).stream) as usize - ptr as usize
            },
            96usize,
            concat!("Offset of field: ", stringify!(hvd_tensor), "::", stringify!(stream))
        );
    }
    test_field_stream();
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_process_set {
    _unused: [u8; 0],
}
pub type hvd_set_rule = i32;
pub const HVD_SET_RULE_WORKERS: _bindgen_ty_5 = 1;
pub const HVD_SET_RULE_RANKS: _bindgen_ty_5 = 2;
pub const HVD_SET_RULE_LOCAL: _bindgen_ty_5 = 3;
pub const HVD_SET_RULE_CROSS: _bindgen_ty_5 = 4;
pub const HVD_SET_RULE_END: _bindgen_ty_5 = 5;
pub type _bindgen_ty_5 = ::std::os::raw::c_int;
extern "C" {
    pub fn hvd_process_set_create(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        ranks: *const i32,
        count: usize,
        rule: hvd_set_rule,
        ret_set: *mut *mut hvd_process_set,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_process_set_destroy(set: *mut hvd_process_set);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_process_set_info {
    pub struct_size: usize,
    pub rank: i32,
    pub size: i32,
    pub local_rank: i32,
    pub local_size: i32,
    pub cross_rank: i32,
    pub cross_size: i32,
    pub generation: u64,
}
#[test]
fn bindgen_test_layout_hvd_process_set_information() {
    assert_eq!(
        ::std::mem::size_of::<hvd_process_set_info>(),
        40usize,
        concat!("Size of: ", stringify!(hvd_process_set_info))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_process_set_info>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_process_set_info))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_process_set_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(hvd_process_set_info),
                "::",
                stringify!(struct_size)
            )
        );
    }
    test_field_struct_size();
    fn test_field_rank() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_process_set_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).rank) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_process_set_info), "::", stringify!(rank))
        );
    }
    test_field_rank();
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_process_set_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            12usize,
            concat!("Offset of field: ", stringify!(hvd_process_set_info), "::", stringify!(size))
        );
    }
    test_field_size();
    fn test_field_local_rank() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_process_set_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).local_rank) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(hvd_process_set_info),
                "::",
                stringify!(local_rank)
            )
        );
    }
    test_field_local_rank();
    fn test_field_local_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_process_set_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).local_size) as usize - ptr as usize
            },
            20usize,
            concat!(
                "Offset of field: ",
                stringify!(hvd_process_set_info),
                "::",
                stringify!(local_size)
            )
        );
    }
    test_field_local_size();
    fn test_field_cross_rank() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_process_set_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cross_rank) as usize - ptr as usize
            },
            24usize,
            concat!(
                "Offset of field: ",
                stringify!(hvd_process_set_info),
                "::",
                stringify!(cross_rank)
            )
        );
    }
    test_field_cross_rank();
    fn test_field_cross_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_process_set_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cross_size) as usize - ptr as usize
            },
            28usize,
            concat!(
                "Offset of field: ",
                stringify!(hvd_process_set_info),
                "::",
                stringify!(cross_size)
            )
        );
    }
    test_field_cross_size();
    fn test_field_generation() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_process_set_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).generation) as usize - ptr as usize
            },
            32usize,
            concat!(
                "Offset of field: ",
                stringify!(hvd_process_set_info),
                "::",
                stringify!(generation)
            )
        );
    }
    test_field_generation();
}
extern "C" {
    pub fn hvd_process_set_get_info(
        set: *mut hvd_process_set,
        ret_info: *mut hvd_process_set_info,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_process_set_get_ranks(
        set: *mut hvd_process_set,
        ret_ranks: *mut i32,
        count: *mut usize,
        error: *mut hvd_error,
    ) -> hvd_status;
}
pub type hvd_collective = i32;
pub const HVD_COLLECTIVE_BROADCAST: _bindgen_ty_6 = 1;
pub const HVD_COLLECTIVE_ALLREDUCE: _bindgen_ty_6 = 2;
pub const HVD_COLLECTIVE_ALLGATHER: _bindgen_ty_6 = 3;
pub const HVD_COLLECTIVE_BARRIER: _bindgen_ty_6 = 4;
pub const HVD_COLLECTIVE_REDUCESCATTER: _bindgen_ty_6 = 5;
pub const HVD_COLLECTIVE_ALLTOALL: _bindgen_ty_6 = 6;
pub const HVD_COLLECTIVE_JOIN: _bindgen_ty_6 = 7;
pub type _bindgen_ty_6 = ::std::os::raw::c_int;
pub type hvd_reduction = i32;
pub const HVD_REDUCTION_SUM: _bindgen_ty_7 = 1;
pub const HVD_REDUCTION_AVERAGE: _bindgen_ty_7 = 2;
pub const HVD_REDUCTION_MIN: _bindgen_ty_7 = 3;
pub const HVD_REDUCTION_MAX: _bindgen_ty_7 = 4;
pub const HVD_REDUCTION_PRODUCT: _bindgen_ty_7 = 5;
pub type _bindgen_ty_7 = ::std::os::raw::c_int;
extern "C" {
    pub fn hvd_allreduce(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        reduction: hvd_reduction,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_broadcast(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        tensor: *mut hvd_tensor,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_allgather(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_reducescatter(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        reduction: hvd_reduction,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_alltoall(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        input: *const hvd_tensor,
        splits: *const i64,
        output: *mut hvd_tensor,
        ret_received_splits: *mut i64,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_barrier(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_broadcast_variables(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        tensors: *mut hvd_tensor,
        count: usize,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_grouped_allreduce(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        inputs: *const hvd_tensor,
        outputs: *mut hvd_tensor,
        count: usize,
        reduction: hvd_reduction,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_grouped_allgather(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        inputs: *const hvd_tensor,
        outputs: *mut hvd_tensor,
        count: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_broadcast_object(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        data: *mut *mut ::std::os::raw::c_void,
        size: *mut usize,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_join(context: *mut hvd_context, ret_last_rank: *mut i32, error: *mut hvd_error) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_op {
    _unused: [u8; 0],
}
extern "C" {
    pub fn hvd_allreduce_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        reduction: hvd_reduction,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_broadcast_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        tensor: *mut hvd_tensor,
        root: i32,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_allgather_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        input: *const hvd_tensor,
        output: *const hvd_tensor,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_reducescatter_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        input: *const hvd_tensor,
        output: *const hvd_tensor,
        reduction: hvd_reduction,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_alltoall_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        input: *const hvd_tensor,
        splits: *const i64,
        output: *const hvd_tensor,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_barrier_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_broadcast_variables_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        tensors: *mut hvd_tensor,
        count: usize,
        root: i32,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_grouped_allreduce_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        inputs: *const hvd_tensor,
        outputs: *const hvd_tensor,
        count: usize,
        reduction: hvd_reduction,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_grouped_allgather_async(
        context: *mut hvd_context,
        name: *const ::std::os::raw::c_char,
        inputs: *const hvd_tensor,
        outputs: *const hvd_tensor,
        count: usize,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_join_async(
        context: *mut hvd_context,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_request {
    pub struct_size: usize,
    pub collective: hvd_collective,
    pub root: i32,
    pub name: *const ::std::os::raw::c_char,
    pub inputs: *const hvd_tensor,
    pub outputs: *const hvd_tensor,
    pub count: usize,
    pub reduction: hvd_reduction,
    pub priority: i32,
    pub prescale: f64,
    pub postscale: f64,
    pub splits: *const i64,
    pub split_count: usize,
    pub process_set: *mut hvd_process_set,
    pub timeout_ns: i64,
}
#[test]
fn bindgen_test_layout_hvd_request() {
    assert_eq!(::std::mem::size_of::<hvd_request>(), 104usize, concat!("Size of: ", stringify!(hvd_request)));
    assert_eq!(
        ::std::mem::align_of::<hvd_request>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_request))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_collective() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).collective) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(collective))
        );
    }
    test_field_collective();
    fn test_field_root() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).root) as usize - ptr as usize
            },
            12usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(root))
        );
    }
    test_field_root();
    fn test_field_name() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).name) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(name))
        );
    }
    test_field_name();
    fn test_field_inputs() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).inputs) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(inputs))
        );
    }
    test_field_inputs();
    fn test_field_outputs() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).outputs) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(outputs))
        );
    }
    test_field_outputs();
    fn test_field_count() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).count) as usize - ptr as usize
            },
            40usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(count))
        );
    }
    test_field_count();
    fn test_field_reduction() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reduction) as usize - ptr as usize
            },
            48usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(reduction))
        );
    }
    test_field_reduction();
    fn test_field_priority() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).priority) as usize - ptr as usize
            },
            52usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(priority))
        );
    }
    test_field_priority();
    fn test_field_prescale() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).prescale) as usize - ptr as usize
            },
            56usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(prescale))
        );
    }
    test_field_prescale();
    fn test_field_postscale() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).postscale) as usize - ptr as usize
            },
            64usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(postscale))
        );
    }
    test_field_postscale();
    fn test_field_splits() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).splits) as usize - ptr as usize
            },
            72usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(splits))
        );
    }
    test_field_splits();
    fn test_field_split_count() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).split_count) as usize - ptr as usize
            },
            80usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(split_count))
        );
    }
    test_field_split_count();
    fn test_field_process_set() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).process_set) as usize - ptr as usize
            },
            88usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(process_set))
        );
    }
    test_field_process_set();
    fn test_field_timeout_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_request>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).timeout_ns) as usize - ptr as usize
            },
            96usize,
            concat!("Offset of field: ", stringify!(hvd_request), "::", stringify!(timeout_ns))
        );
    }
    test_field_timeout_ns();
}
extern "C" {
    pub fn hvd_submit(
        context: *mut hvd_context,
        request: *const hvd_request,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_op_test(op: *mut hvd_op, ret_done: *mut i32, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_op_wait(op: *mut hvd_op, timeout_ns: i64, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_op_get_fd(op: *mut hvd_op, ret_fd: *mut i32, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_op_get_error(op: *mut hvd_op, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_op_get_output(
        op: *mut hvd_op,
        index: usize,
        ret_output: *mut hvd_tensor,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_op_get_received_splits(
        op: *mut hvd_op,
        ret_splits: *mut i64,
        count: *mut usize,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_op_get_last_joined(op: *mut hvd_op, ret_rank: *mut i32, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_op_destroy(op: *mut hvd_op);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_state {
    _unused: [u8; 0],
}
extern "C" {
    pub fn hvd_state_create(
        context: *mut hvd_context,
        ret_state: *mut *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_destroy(state: *mut hvd_state);
}
extern "C" {
    pub fn hvd_state_add_tensor(
        state: *mut hvd_state,
        key: *const ::std::os::raw::c_char,
        tensor: *const hvd_tensor,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_add_value(
        state: *mut hvd_state,
        key: *const ::std::os::raw::c_char,
        value: *mut ::std::os::raw::c_void,
        size: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
}
pub type hvd_write_fn = ::std::option::Option<
    unsafe extern "C" fn(sink: *mut ::std::os::raw::c_void, data: *const ::std::os::raw::c_void, size: usize),
>;
pub type hvd_save_fn = ::std::option::Option<
    unsafe extern "C" fn(
        userdata: *mut ::std::os::raw::c_void,
        write: hvd_write_fn,
        sink: *mut ::std::os::raw::c_void,
    ) -> i32,
>;
pub type hvd_load_fn = ::std::option::Option<
    unsafe extern "C" fn(
        userdata: *mut ::std::os::raw::c_void,
        data: *const ::std::os::raw::c_void,
        size: usize,
    ) -> i32,
>;
extern "C" {
    pub fn hvd_state_add_object(
        state: *mut hvd_state,
        key: *const ::std::os::raw::c_char,
        save: hvd_save_fn,
        load: hvd_load_fn,
        userdata: *mut ::std::os::raw::c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_remove(
        state: *mut hvd_state,
        key: *const ::std::os::raw::c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
}
pub type hvd_reset_fn =
    ::std::option::Option<unsafe extern "C" fn(userdata: *mut ::std::os::raw::c_void) -> i32>;
extern "C" {
    pub fn hvd_state_on_reset(
        state: *mut hvd_state,
        reset: hvd_reset_fn,
        userdata: *mut ::std::os::raw::c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_commit(state: *mut hvd_state, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_save(state: *mut hvd_state, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_check_host_updates(state: *mut hvd_state, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_restore(state: *mut hvd_state, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_sync(state: *mut hvd_state, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_state_revision(state: *mut hvd_state) -> u64;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_state_info {
    pub struct_size: usize,
    pub revision: u64,
    pub commits: u64,
    pub restores: u64,
    pub syncs: u64,
    pub bytes: u64,
    pub sync_sent_bytes: u64,
    pub sync_received_bytes: u64,
    pub last_commit_ns: i64,
}
#[test]
fn bindgen_test_layout_hvd_state_statistics() {
    assert_eq!(
        ::std::mem::size_of::<hvd_state_info>(),
        72usize,
        concat!("Size of: ", stringify!(hvd_state_info))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_state_info>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_state_info))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_state_info), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_revision() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).revision) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_state_info), "::", stringify!(revision))
        );
    }
    test_field_revision();
    fn test_field_commits() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).commits) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_state_info), "::", stringify!(commits))
        );
    }
    test_field_commits();
    fn test_field_restores() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).restores) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_state_info), "::", stringify!(restores))
        );
    }
    test_field_restores();
    fn test_field_syncs() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).syncs) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_state_info), "::", stringify!(syncs))
        );
    }
    test_field_syncs();
    fn test_field_bytes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).bytes) as usize - ptr as usize
            },
            40usize,
            concat!("Offset of field: ", stringify!(hvd_state_info), "::", stringify!(bytes))
        );
    }
    test_field_bytes();
    fn test_field_sync_sent_bytes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).sync_sent_bytes) as usize - ptr as usize
            },
            48usize,
            concat!("Offset of field: ", stringify!(hvd_state_info), "::", stringify!(sync_sent_bytes))
        );
    }
    test_field_sync_sent_bytes();
    fn test_field_sync_received_bytes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).sync_received_bytes) as usize - ptr as usize
            },
            56usize,
            concat!(
                "Offset of field: ",
                stringify!(hvd_state_info),
                "::",
                stringify!(sync_received_bytes)
            )
        );
    }
    test_field_sync_received_bytes();
    fn test_field_last_commit_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_state_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).last_commit_ns) as usize - ptr as usize
            },
            64usize,
            concat!("Offset of field: ", stringify!(hvd_state_info), "::", stringify!(last_commit_ns))
        );
    }
    test_field_last_commit_ns();
}
extern "C" {
    pub fn hvd_state_get_info(
        state: *mut hvd_state,
        ret_statistics: *mut hvd_state_info,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_sampler {
    _unused: [u8; 0],
}
pub type hvd_padding = i32;
pub const HVD_PADDING_NONE: _bindgen_ty_8 = 0;
pub const HVD_PADDING_REPEAT: _bindgen_ty_8 = 1;
pub const HVD_PADDING_DROP: _bindgen_ty_8 = 2;
pub type _bindgen_ty_8 = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_sampler_options {
    pub struct_size: usize,
    pub samples: u64,
    pub batch_size: u64,
    pub seed: u64,
    pub in_order: i32,
    pub padding: hvd_padding,
}
#[test]
fn bindgen_test_layout_hvd_sampler_options() {
    assert_eq!(
        ::std::mem::size_of::<hvd_sampler_options>(),
        40usize,
        concat!("Size of: ", stringify!(hvd_sampler_options))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_sampler_options>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_sampler_options))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_options>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_options), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_samples() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_options>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).samples) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_options), "::", stringify!(samples))
        );
    }
    test_field_samples();
    fn test_field_batch_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_options>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).batch_size) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_options), "::", stringify!(batch_size))
        );
    }
    test_field_batch_size();
    fn test_field_seed() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_options>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).seed) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_options), "::", stringify!(seed))
        );
    }
    test_field_seed();
    fn test_field_in_order() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_options>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).in_order) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_options), "::", stringify!(in_order))
        );
    }
    test_field_in_order();
    fn test_field_padding() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_options>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).padding) as usize - ptr as usize
            },
            36usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_options), "::", stringify!(padding))
        );
    }
    test_field_padding();
}
extern "C" {
    pub fn hvd_sampler_create(
        context: *mut hvd_context,
        options: *const hvd_sampler_options,
        ret_sampler: *mut *mut hvd_sampler,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_sampler_destroy(sampler: *mut hvd_sampler);
}
extern "C" {
    pub fn hvd_state_add_sampler(
        state: *mut hvd_state,
        key: *const ::std::os::raw::c_char,
        sampler: *mut hvd_sampler,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_sampler_batch {
    pub struct_size: usize,
    pub generation: u64,
    pub epoch: u64,
    pub position: u64,
    pub count: u64,
    pub total: u64,
}
#[test]
fn bindgen_test_layout_hvd_sampler_batch() {
    assert_eq!(
        ::std::mem::size_of::<hvd_sampler_batch>(),
        48usize,
        concat!("Size of: ", stringify!(hvd_sampler_batch))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_sampler_batch>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_sampler_batch))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_batch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_batch), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_generation() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_batch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).generation) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_batch), "::", stringify!(generation))
        );
    }
    test_field_generation();
    fn test_field_epoch() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_batch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).epoch) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_batch), "::", stringify!(epoch))
        );
    }
    test_field_epoch();
    fn test_field_position() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_batch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).position) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_batch), "::", stringify!(position))
        );
    }
    test_field_position();
    fn test_field_count() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_batch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).count) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_batch), "::", stringify!(count))
        );
    }
    test_field_count();
    fn test_field_total() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_batch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).total) as usize - ptr as usize
            },
            40usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_batch), "::", stringify!(total))
        );
    }
    test_field_total();
}
extern "C" {
    pub fn hvd_sampler_next(
        sampler: *mut hvd_sampler,
        after: *const hvd_sampler_batch,
        indices: *mut u64,
        room: usize,
        ret_batch: *mut hvd_sampler_batch,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_sampler_record(
        sampler: *mut hvd_sampler,
        batch: *const hvd_sampler_batch,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_sampler_set_epoch(sampler: *mut hvd_sampler, epoch: u64, error: *mut hvd_error) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_sampler_info {
    pub struct_size: usize,
    pub epoch: u64,
    pub samples: u64,
    pub batch_size: u64,
    pub processed: u64,
    pub remaining: u64,
    pub rounds: u64,
}
#[test]
fn bindgen_test_layout_hvd_sampler_information() {
    assert_eq!(
        ::std::mem::size_of::<hvd_sampler_info>(),
        56usize,
        concat!("Size of: ", stringify!(hvd_sampler_info))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_sampler_info>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_sampler_info))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_info), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_epoch() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).epoch) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_info), "::", stringify!(epoch))
        );
    }
    test_field_epoch();
    fn test_field_samples() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).samples) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_info), "::", stringify!(samples))
        );
    }
    test_field_samples();
    fn test_field_batch_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).batch_size) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_info), "::", stringify!(batch_size))
        );
    }
    test_field_batch_size();
    fn test_field_processed() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).processed) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_info), "::", stringify!(processed))
        );
    }
    test_field_processed();
    fn test_field_remaining() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).remaining) as usize - ptr as usize
            },
            40usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_info), "::", stringify!(remaining))
        );
    }
    test_field_remaining();
    fn test_field_rounds() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_sampler_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).rounds) as usize - ptr as usize
            },
            48usize,
            concat!("Offset of field: ", stringify!(hvd_sampler_info), "::", stringify!(rounds))
        );
    }
    test_field_rounds();
}
extern "C" {
    pub fn hvd_sampler_get_info(
        sampler: *mut hvd_sampler,
        ret_info: *mut hvd_sampler_info,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_sampler_save(
        sampler: *mut hvd_sampler,
        data: *mut ::std::os::raw::c_void,
        room: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_sampler_load(
        sampler: *mut hvd_sampler,
        data: *const ::std::os::raw::c_void,
        size: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
}
pub type hvd_train_fn =
    ::std::option::Option<unsafe extern "C" fn(userdata: *mut ::std::os::raw::c_void) -> hvd_status>;
extern "C" {
    pub fn hvd_run(
        context: *mut hvd_context,
        state: *mut hvd_state,
        train: hvd_train_fn,
        userdata: *mut ::std::os::raw::c_void,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_run_loop {
    _unused: [u8; 0],
}
extern "C" {
    pub fn hvd_run_begin(
        context: *mut hvd_context,
        state: *mut hvd_state,
        ret_loop: *mut *mut hvd_run_loop,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_run_next(
        loop_: *mut hvd_run_loop,
        last: hvd_status,
        ret_again: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_run_end(loop_: *mut hvd_run_loop);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_recovery_info {
    pub struct_size: usize,
    pub from_generation: u64,
    pub to_generation: u64,
    pub cause: hvd_status,
    pub from_size: i32,
    pub to_size: i32,
    pub attempts: i32,
    pub revision: u64,
    pub began_at_ns: i64,
    pub detection_ns: i64,
    pub abort_ns: i64,
    pub restore_ns: i64,
    pub forming_ns: i64,
    pub connecting_ns: i64,
    pub sync_ns: i64,
    pub total_ns: i64,
    pub sync_bytes: u64,
    pub reason: [::std::os::raw::c_char; 256usize],
}
#[test]
fn bindgen_test_layout_hvd_recovery() {
    assert_eq!(
        ::std::mem::size_of::<hvd_recovery_info>(),
        376usize,
        concat!("Size of: ", stringify!(hvd_recovery_info))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_recovery_info>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_recovery_info))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_from_generation() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).from_generation) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(from_generation))
        );
    }
    test_field_from_generation();
    fn test_field_to_generation() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).to_generation) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(to_generation))
        );
    }
    test_field_to_generation();
    fn test_field_cause() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cause) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(cause))
        );
    }
    test_field_cause();
    fn test_field_from_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).from_size) as usize - ptr as usize
            },
            28usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(from_size))
        );
    }
    test_field_from_size();
    fn test_field_to_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).to_size) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(to_size))
        );
    }
    test_field_to_size();
    fn test_field_attempts() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).attempts) as usize - ptr as usize
            },
            36usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(attempts))
        );
    }
    test_field_attempts();
    fn test_field_revision() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).revision) as usize - ptr as usize
            },
            40usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(revision))
        );
    }
    test_field_revision();
    fn test_field_began_at_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).began_at_ns) as usize - ptr as usize
            },
            48usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(began_at_ns))
        );
    }
    test_field_began_at_ns();
    fn test_field_detection_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).detection_ns) as usize - ptr as usize
            },
            56usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(detection_ns))
        );
    }
    test_field_detection_ns();
    fn test_field_abort_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).abort_ns) as usize - ptr as usize
            },
            64usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(abort_ns))
        );
    }
    test_field_abort_ns();
    fn test_field_restore_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).restore_ns) as usize - ptr as usize
            },
            72usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(restore_ns))
        );
    }
    test_field_restore_ns();
    fn test_field_forming_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).forming_ns) as usize - ptr as usize
            },
            80usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(forming_ns))
        );
    }
    test_field_forming_ns();
    fn test_field_connecting_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).connecting_ns) as usize - ptr as usize
            },
            88usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(connecting_ns))
        );
    }
    test_field_connecting_ns();
    fn test_field_sync_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).sync_ns) as usize - ptr as usize
            },
            96usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(sync_ns))
        );
    }
    test_field_sync_ns();
    fn test_field_total_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).total_ns) as usize - ptr as usize
            },
            104usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(total_ns))
        );
    }
    test_field_total_ns();
    fn test_field_sync_bytes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).sync_bytes) as usize - ptr as usize
            },
            112usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(sync_bytes))
        );
    }
    test_field_sync_bytes();
    fn test_field_reason() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_recovery_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reason) as usize - ptr as usize
            },
            120usize,
            concat!("Offset of field: ", stringify!(hvd_recovery_info), "::", stringify!(reason))
        );
    }
    test_field_reason();
}
extern "C" {
    pub fn hvd_get_recovery_count(
        context: *mut hvd_context,
        ret_count: *mut usize,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_get_recovery(
        context: *mut hvd_context,
        index: usize,
        ret_recovery: *mut hvd_recovery_info,
        error: *mut hvd_error,
    ) -> hvd_status;
}
pub type hvd_event_kind = u32;
pub const HVD_EVENT_HOSTS_UPDATED: _bindgen_ty_9 = 1;
pub const HVD_EVENT_PEER_LOST: _bindgen_ty_9 = 2;
pub const HVD_EVENT_GENERATION: _bindgen_ty_9 = 4;
pub const HVD_EVENT_JOB_ENDED: _bindgen_ty_9 = 8;
pub const HVD_EVENT_DRIVER_LOST: _bindgen_ty_9 = 16;
pub const HVD_EVENT_RECOVERED: _bindgen_ty_9 = 32;
pub const HVD_EVENT_STALLED: _bindgen_ty_9 = 64;
pub type _bindgen_ty_9 = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_event {
    pub struct_size: usize,
    pub kind: hvd_event_kind,
    pub lost: u32,
    pub sequence: u64,
    pub generation: u64,
    pub membership_epoch: u64,
    pub rank: i32,
    pub size: i32,
    pub message: [::std::os::raw::c_char; 256usize],
}
#[test]
fn bindgen_test_layout_hvd_event() {
    assert_eq!(::std::mem::size_of::<hvd_event>(), 304usize, concat!("Size of: ", stringify!(hvd_event)));
    assert_eq!(::std::mem::align_of::<hvd_event>(), 8usize, concat!("Alignment of ", stringify!(hvd_event)));
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_kind() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).kind) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(kind))
        );
    }
    test_field_kind();
    fn test_field_lost() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).lost) as usize - ptr as usize
            },
            12usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(lost))
        );
    }
    test_field_lost();
    fn test_field_sequence() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).sequence) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(sequence))
        );
    }
    test_field_sequence();
    fn test_field_generation() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).generation) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(generation))
        );
    }
    test_field_generation();
    fn test_field_membership_epoch() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).membership_epoch) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(membership_epoch))
        );
    }
    test_field_membership_epoch();
    fn test_field_rank() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).rank) as usize - ptr as usize
            },
            40usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(rank))
        );
    }
    test_field_rank();
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            44usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(size))
        );
    }
    test_field_size();
    fn test_field_message() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).message) as usize - ptr as usize
            },
            48usize,
            concat!("Offset of field: ", stringify!(hvd_event), "::", stringify!(message))
        );
    }
    test_field_message();
}
pub type hvd_listener_fn = ::std::option::Option<
    unsafe extern "C" fn(userdata: *mut ::std::os::raw::c_void, event: *const hvd_event),
>;
extern "C" {
    pub fn hvd_register_listener(
        context: *mut hvd_context,
        kinds: hvd_event_kind,
        listener: hvd_listener_fn,
        userdata: *mut ::std::os::raw::c_void,
        destroy: hvd_destroy_fn,
        ret_listener: *mut u64,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_remove_listener(context: *mut hvd_context, listener: u64, error: *mut hvd_error)
        -> hvd_status;
}
extern "C" {
    pub fn hvd_get_event_fd(context: *mut hvd_context, ret_fd: *mut i32, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_next_event(
        context: *mut hvd_context,
        ret_event: *mut hvd_event,
        ret_available: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_timeline_start(
        context: *mut hvd_context,
        path: *const ::std::os::raw::c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_timeline_stop(context: *mut hvd_context, error: *mut hvd_error) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_backend_report {
    pub struct_size: usize,
    pub name: [::std::os::raw::c_char; 16usize],
    pub version: [::std::os::raw::c_char; 64usize],
    pub path: [::std::os::raw::c_char; 512usize],
    pub usable: i32,
    pub abi_version: u32,
    pub memories: u64,
    pub dtypes: u64,
    pub collectives: u64,
    pub local: i32,
    pub max_instances: i32,
    pub reason: [::std::os::raw::c_char; 512usize],
}
#[test]
fn bindgen_test_layout_hvd_backend_report() {
    assert_eq!(
        ::std::mem::size_of::<hvd_backend_report>(),
        1152usize,
        concat!("Size of: ", stringify!(hvd_backend_report))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_backend_report>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_backend_report))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_name() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).name) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(name))
        );
    }
    test_field_name();
    fn test_field_version() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).version) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(version))
        );
    }
    test_field_version();
    fn test_field_path() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).path) as usize - ptr as usize
            },
            88usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(path))
        );
    }
    test_field_path();
    fn test_field_usable() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).usable) as usize - ptr as usize
            },
            600usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(usable))
        );
    }
    test_field_usable();
    fn test_field_abi_version() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).abi_version) as usize - ptr as usize
            },
            604usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(abi_version))
        );
    }
    test_field_abi_version();
    fn test_field_memories() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).memories) as usize - ptr as usize
            },
            608usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(memories))
        );
    }
    test_field_memories();
    fn test_field_dtypes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).dtypes) as usize - ptr as usize
            },
            616usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(dtypes))
        );
    }
    test_field_dtypes();
    fn test_field_collectives() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).collectives) as usize - ptr as usize
            },
            624usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(collectives))
        );
    }
    test_field_collectives();
    fn test_field_local() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).local) as usize - ptr as usize
            },
            632usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(local))
        );
    }
    test_field_local();
    fn test_field_max_instances() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).max_instances) as usize - ptr as usize
            },
            636usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(max_instances))
        );
    }
    test_field_max_instances();
    fn test_field_reason() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_report>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reason) as usize - ptr as usize
            },
            640usize,
            concat!("Offset of field: ", stringify!(hvd_backend_report), "::", stringify!(reason))
        );
    }
    test_field_reason();
}
extern "C" {
    pub fn hvd_get_available_backend_count(
        options: *const hvd_options,
        ret_count: *mut usize,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_get_available_backend(
        options: *const hvd_options,
        index: usize,
        ret_report: *mut hvd_backend_report,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_backend_choice_info {
    pub struct_size: usize,
    pub name: [::std::os::raw::c_char; 16usize],
    pub reason: [::std::os::raw::c_char; 512usize],
}
#[test]
fn bindgen_test_layout_hvd_backend_selection() {
    assert_eq!(
        ::std::mem::size_of::<hvd_backend_choice_info>(),
        536usize,
        concat!("Size of: ", stringify!(hvd_backend_choice_info))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_backend_choice_info>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_backend_choice_info))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_choice_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_backend_choice_info), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_name() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_choice_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).name) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_backend_choice_info), "::", stringify!(name))
        );
    }
    test_field_name();
    fn test_field_reason() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_backend_choice_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reason) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_backend_choice_info), "::", stringify!(reason))
        );
    }
    test_field_reason();
}
extern "C" {
    pub fn hvd_get_backend_choice(
        context: *mut hvd_context,
        memory: hvd_memory,
        dtype: hvd_dtype,
        collective: hvd_collective,
        ret_selection: *mut hvd_backend_choice_info,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_driver {
    _unused: [u8; 0],
}
extern "C" {
    pub fn hvd_driver_create(
        options: *const hvd_options,
        ret_driver: *mut *mut hvd_driver,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_driver_set_command(
        driver: *mut hvd_driver,
        argv: *const *const ::std::os::raw::c_char,
        environment: *const *const ::std::os::raw::c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_host {
    pub name: *const ::std::os::raw::c_char,
    pub slots: i32,
}
#[test]
fn bindgen_test_layout_hvd_host() {
    assert_eq!(::std::mem::size_of::<hvd_host>(), 16usize, concat!("Size of: ", stringify!(hvd_host)));
    assert_eq!(::std::mem::align_of::<hvd_host>(), 8usize, concat!("Alignment of ", stringify!(hvd_host)));
    fn test_field_name() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_host>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).name) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_host), "::", stringify!(name))
        );
    }
    test_field_name();
    fn test_field_slots() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_host>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).slots) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_host), "::", stringify!(slots))
        );
    }
    test_field_slots();
}
pub type hvd_add_host_fn = ::std::option::Option<
    unsafe extern "C" fn(sink: *mut ::std::os::raw::c_void, name: *const ::std::os::raw::c_char, slots: i32),
>;
pub type hvd_discover_fn = ::std::option::Option<
    unsafe extern "C" fn(
        userdata: *mut ::std::os::raw::c_void,
        add: hvd_add_host_fn,
        sink: *mut ::std::os::raw::c_void,
    ) -> i32,
>;
extern "C" {
    pub fn hvd_driver_set_discovery(
        driver: *mut hvd_driver,
        discover: hvd_discover_fn,
        userdata: *mut ::std::os::raw::c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_launch {
    pub struct_size: usize,
    pub worker: u64,
    pub host: *const ::std::os::raw::c_char,
    pub slot: i32,
    pub environment: *const *const ::std::os::raw::c_char,
}
#[test]
fn bindgen_test_layout_hvd_launch() {
    assert_eq!(::std::mem::size_of::<hvd_launch>(), 40usize, concat!("Size of: ", stringify!(hvd_launch)));
    assert_eq!(
        ::std::mem::align_of::<hvd_launch>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_launch))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_launch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_launch), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_worker() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_launch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).worker) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_launch), "::", stringify!(worker))
        );
    }
    test_field_worker();
    fn test_field_host() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_launch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).host) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_launch), "::", stringify!(host))
        );
    }
    test_field_host();
    fn test_field_slot() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_launch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).slot) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_launch), "::", stringify!(slot))
        );
    }
    test_field_slot();
    fn test_field_environment() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_launch>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).environment) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_launch), "::", stringify!(environment))
        );
    }
    test_field_environment();
}
pub type hvd_launch_fn = ::std::option::Option<
    unsafe extern "C" fn(userdata: *mut ::std::os::raw::c_void, launch: *const hvd_launch) -> i32,
>;
pub type hvd_stop_fn = ::std::option::Option<
    unsafe extern "C" fn(userdata: *mut ::std::os::raw::c_void, worker: u64, force: i32),
>;
extern "C" {
    pub fn hvd_driver_set_launcher(
        driver: *mut hvd_driver,
        start: hvd_launch_fn,
        stop: hvd_stop_fn,
        userdata: *mut ::std::os::raw::c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_driver_worker_exited(
        driver: *mut hvd_driver,
        worker: u64,
        exit_status: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
}
pub type hvd_output_fn = ::std::option::Option<
    unsafe extern "C" fn(
        userdata: *mut ::std::os::raw::c_void,
        rank: i32,
        host: *const ::std::os::raw::c_char,
        slot: i32,
        is_stderr: i32,
        line: *const ::std::os::raw::c_char,
    ),
>;
extern "C" {
    pub fn hvd_driver_set_output(
        driver: *mut hvd_driver,
        output: hvd_output_fn,
        userdata: *mut ::std::os::raw::c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_driver_start(driver: *mut hvd_driver, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_driver_wait(driver: *mut hvd_driver, timeout_ns: i64, error: *mut hvd_error) -> hvd_status;
}
extern "C" {
    pub fn hvd_driver_stop(
        driver: *mut hvd_driver,
        reason: *const ::std::os::raw::c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
}
pub type hvd_phase = i32;
pub const HVD_PHASE_NEW: _bindgen_ty_10 = 0;
pub const HVD_PHASE_FORMING: _bindgen_ty_10 = 1;
pub const HVD_PHASE_RUNNING: _bindgen_ty_10 = 2;
pub const HVD_PHASE_ENDING: _bindgen_ty_10 = 3;
pub const HVD_PHASE_SUCCEEDED: _bindgen_ty_10 = 4;
pub const HVD_PHASE_FAILED: _bindgen_ty_10 = 5;
pub type _bindgen_ty_10 = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct hvd_driver_status_info {
    pub struct_size: usize,
    pub phase: hvd_phase,
    pub size: i32,
    pub workers: i32,
    pub slots: i32,
    pub resets: i32,
    pub generation: u64,
    pub membership_epoch: u64,
    pub hosts_blocked: i32,
    pub port: i32,
    pub sentence: [::std::os::raw::c_char; 512usize],
    pub stall: [::std::os::raw::c_char; 512usize],
}
#[test]
fn bindgen_test_layout_hvd_driver_status_info() {
    assert_eq!(
        ::std::mem::size_of::<hvd_driver_status_info>(),
        1080usize,
        concat!("Size of: ", stringify!(hvd_driver_status_info))
    );
    assert_eq!(
        ::std::mem::align_of::<hvd_driver_status_info>(),
        8usize,
        concat!("Alignment of ", stringify!(hvd_driver_status_info))
    );
    fn test_field_struct_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).struct_size) as usize - ptr as usize
            },
            0usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(struct_size))
        );
    }
    test_field_struct_size();
    fn test_field_phase() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).phase) as usize - ptr as usize
            },
            8usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(phase))
        );
    }
    test_field_phase();
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            12usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(size))
        );
    }
    test_field_size();
    fn test_field_workers() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).workers) as usize - ptr as usize
            },
            16usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(workers))
        );
    }
    test_field_workers();
    fn test_field_slots() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).slots) as usize - ptr as usize
            },
            20usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(slots))
        );
    }
    test_field_slots();
    fn test_field_resets() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).resets) as usize - ptr as usize
            },
            24usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(resets))
        );
    }
    test_field_resets();
    fn test_field_generation() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).generation) as usize - ptr as usize
            },
            32usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(generation))
        );
    }
    test_field_generation();
    fn test_field_membership_epoch() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).membership_epoch) as usize - ptr as usize
            },
            40usize,
            concat!(
                "Offset of field: ",
                stringify!(hvd_driver_status_info),
                "::",
                stringify!(membership_epoch)
            )
        );
    }
    test_field_membership_epoch();
    fn test_field_hosts_blocked() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).hosts_blocked) as usize - ptr as usize
            },
            48usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(hosts_blocked))
        );
    }
    test_field_hosts_blocked();
    fn test_field_port() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).port) as usize - ptr as usize
            },
            52usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(port))
        );
    }
    test_field_port();
    fn test_field_sentence() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).sentence) as usize - ptr as usize
            },
            56usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(sentence))
        );
    }
    test_field_sentence();
    fn test_field_stall() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<hvd_driver_status_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).stall) as usize - ptr as usize
            },
            568usize,
            concat!("Offset of field: ", stringify!(hvd_driver_status_info), "::", stringify!(stall))
        );
    }
    test_field_stall();
}
extern "C" {
    pub fn hvd_driver_get_status(
        driver: *mut hvd_driver,
        ret_status: *mut hvd_driver_status_info,
        error: *mut hvd_error,
    ) -> hvd_status;
}
extern "C" {
    pub fn hvd_driver_destroy(driver: *mut hvd_driver);
}
