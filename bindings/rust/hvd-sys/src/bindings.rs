// Made from the headers by scripts/api/make.py: do not edit.
use std::os::raw::{c_char, c_void};

pub const HVD_VERSION_MAJOR: u32 = 0;
pub const HVD_VERSION_MINOR: u32 = 2;
pub const HVD_VERSION_PATCH: u32 = 0;
pub const HVD_VERSION_STRING: &[u8; 6] = b"0.2.0\0";
pub const HVD_ABI_VERSION: u32 = 1;
pub const HVD_MILLISECOND: i64 = 1000000;
pub const HVD_SECOND: i64 = 1000000000;
pub const HVD_DEFAULT_TIMEOUT: i64 = 0;
pub const HVD_MAX_DIMS: usize = 8;
pub const HVD_EVENT_ALL: hvd_event_kind = 4294967295;
pub const HVD_SAMPLER_SAVED_BYTES: usize = 64;
pub const HVD_NO_COPIES: i32 = -1;

pub type hvd_status = i32;
pub type hvd_log_level = i32;
#[repr(C)]
pub struct hvd_options {
    _private: [u8; 0],
}
#[repr(C)]
pub struct hvd_context {
    _private: [u8; 0],
}
pub type hvd_dtype = i32;
pub type hvd_memory = i32;
#[repr(C)]
pub struct hvd_process_set {
    _private: [u8; 0],
}
pub type hvd_set_rule = i32;
pub type hvd_collective = i32;
pub type hvd_reduction = i32;
#[repr(C)]
pub struct hvd_op {
    _private: [u8; 0],
}
#[repr(C)]
pub struct hvd_state {
    _private: [u8; 0],
}
#[repr(C)]
pub struct hvd_run_loop {
    _private: [u8; 0],
}
pub type hvd_event_kind = u32;
#[repr(C)]
pub struct hvd_sampler {
    _private: [u8; 0],
}
pub type hvd_padding = i32;
#[repr(C)]
pub struct hvd_driver {
    _private: [u8; 0],
}
pub type hvd_phase = i32;
pub type hvd_driver_format = i32;
#[repr(C)]
pub struct hvd_agent {
    _private: [u8; 0],
}

pub const HVD_OK: hvd_status = 0;
pub const HVD_PEER_LOST: hvd_status = 1;
pub const HVD_HOSTS_UPDATED: hvd_status = 2;
pub const HVD_MISMATCH: hvd_status = 3;
pub const HVD_INVALID: hvd_status = 4;
pub const HVD_TIMEOUT: hvd_status = 5;
pub const HVD_CLOSED: hvd_status = 6;
pub const HVD_REMOVED: hvd_status = 7;
pub const HVD_DRIVER_LOST: hvd_status = 8;
pub const HVD_REFUSED: hvd_status = 9;
pub const HVD_UNAVAILABLE: hvd_status = 10;
pub const HVD_UNSUPPORTED: hvd_status = 11;
pub const HVD_CALLBACK_FAILED: hvd_status = 12;
pub const HVD_JOB_FAILED: hvd_status = 13;
pub const HVD_INTERNAL: hvd_status = 14;

pub const HVD_LOG_DEFAULT: hvd_log_level = 0;
pub const HVD_LOG_TRACE: hvd_log_level = 1;
pub const HVD_LOG_DEBUG: hvd_log_level = 2;
pub const HVD_LOG_INFO: hvd_log_level = 3;
pub const HVD_LOG_WARNING: hvd_log_level = 4;
pub const HVD_LOG_ERROR: hvd_log_level = 5;
pub const HVD_LOG_OFF: hvd_log_level = 6;

pub const HVD_DTYPE_UINT8: hvd_dtype = 1;
pub const HVD_DTYPE_INT8: hvd_dtype = 2;
pub const HVD_DTYPE_UINT16: hvd_dtype = 3;
pub const HVD_DTYPE_INT16: hvd_dtype = 4;
pub const HVD_DTYPE_UINT32: hvd_dtype = 5;
pub const HVD_DTYPE_INT32: hvd_dtype = 6;
pub const HVD_DTYPE_UINT64: hvd_dtype = 7;
pub const HVD_DTYPE_INT64: hvd_dtype = 8;
pub const HVD_DTYPE_FLOAT16: hvd_dtype = 9;
pub const HVD_DTYPE_BFLOAT16: hvd_dtype = 10;
pub const HVD_DTYPE_FLOAT32: hvd_dtype = 11;
pub const HVD_DTYPE_FLOAT64: hvd_dtype = 12;
pub const HVD_DTYPE_BOOL: hvd_dtype = 13;
pub const HVD_DTYPE_FLOAT8_E4M3FN: hvd_dtype = 14;
pub const HVD_DTYPE_FLOAT8_E5M2: hvd_dtype = 15;
pub const HVD_DTYPE_FLOAT8_E4M3FNUZ: hvd_dtype = 16;
pub const HVD_DTYPE_FLOAT8_E5M2FNUZ: hvd_dtype = 17;
pub const HVD_DTYPE_COMPLEX64: hvd_dtype = 18;
pub const HVD_DTYPE_COMPLEX128: hvd_dtype = 19;

pub const HVD_MEMORY_HOST: hvd_memory = 0;
pub const HVD_MEMORY_CUDA: hvd_memory = 1;

pub const HVD_SET_RULE_WORKERS: hvd_set_rule = 1;
pub const HVD_SET_RULE_RANKS: hvd_set_rule = 2;
pub const HVD_SET_RULE_LOCAL: hvd_set_rule = 3;
pub const HVD_SET_RULE_CROSS: hvd_set_rule = 4;
pub const HVD_SET_RULE_END: hvd_set_rule = 5;

pub const HVD_COLLECTIVE_BROADCAST: hvd_collective = 1;
pub const HVD_COLLECTIVE_ALLREDUCE: hvd_collective = 2;
pub const HVD_COLLECTIVE_ALLGATHER: hvd_collective = 3;
pub const HVD_COLLECTIVE_BARRIER: hvd_collective = 4;
pub const HVD_COLLECTIVE_REDUCESCATTER: hvd_collective = 5;
pub const HVD_COLLECTIVE_ALLTOALL: hvd_collective = 6;
pub const HVD_COLLECTIVE_JOIN: hvd_collective = 7;

pub const HVD_REDUCTION_SUM: hvd_reduction = 1;
pub const HVD_REDUCTION_AVERAGE: hvd_reduction = 2;
pub const HVD_REDUCTION_MIN: hvd_reduction = 3;
pub const HVD_REDUCTION_MAX: hvd_reduction = 4;
pub const HVD_REDUCTION_PRODUCT: hvd_reduction = 5;

pub const HVD_EVENT_HOSTS_UPDATED: hvd_event_kind = 1;
pub const HVD_EVENT_PEER_LOST: hvd_event_kind = 2;
pub const HVD_EVENT_GENERATION: hvd_event_kind = 4;
pub const HVD_EVENT_JOB_ENDED: hvd_event_kind = 8;
pub const HVD_EVENT_DRIVER_LOST: hvd_event_kind = 16;
pub const HVD_EVENT_RECOVERED: hvd_event_kind = 32;
pub const HVD_EVENT_STALLED: hvd_event_kind = 64;
pub const HVD_EVENT_DIVERGED: hvd_event_kind = 128;
pub const HVD_EVENT_DRIVER_BACK: hvd_event_kind = 256;

pub const HVD_COLLECTIVE_BROADCAST_OBJECT: i32 = 8;
pub const HVD_COLLECTIVE_SEND: i32 = 9;
pub const HVD_COLLECTIVE_RECEIVE: i32 = 10;
pub const HVD_COLLECTIVE_REDUCE: i32 = 11;
pub const HVD_COLLECTIVE_GATHER: i32 = 12;
pub const HVD_COLLECTIVE_SCATTER: i32 = 13;

pub const HVD_PADDING_NONE: hvd_padding = 0;
pub const HVD_PADDING_REPEAT: hvd_padding = 1;
pub const HVD_PADDING_DROP: hvd_padding = 2;

pub const HVD_PHASE_NEW: hvd_phase = 0;
pub const HVD_PHASE_FORMING: hvd_phase = 1;
pub const HVD_PHASE_RUNNING: hvd_phase = 2;
pub const HVD_PHASE_ENDING: hvd_phase = 3;
pub const HVD_PHASE_SUCCEEDED: hvd_phase = 4;
pub const HVD_PHASE_FAILED: hvd_phase = 5;

pub const HVD_DRIVER_FORMAT_TEXT: hvd_driver_format = 0;
pub const HVD_DRIVER_FORMAT_JSON: hvd_driver_format = 1;
pub const HVD_DRIVER_FORMAT_OPENMETRICS: hvd_driver_format = 2;
pub const HVD_DRIVER_FORMAT_LINE: hvd_driver_format = 3;

pub type hvd_destroy_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
    )>;
pub type hvd_log_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        level: hvd_log_level,
        message: *const c_char,
    )>;
pub type hvd_write_fn =
    Option<unsafe extern "C" fn(
        sink: *mut c_void,
        data: *const c_void,
        size: usize,
    ) -> i32>;
pub type hvd_save_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        write: hvd_write_fn,
        sink: *mut c_void,
    ) -> i32>;
pub type hvd_load_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        data: *const c_void,
        size: usize,
    ) -> i32>;
pub type hvd_reset_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
    ) -> i32>;
pub type hvd_train_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
    ) -> hvd_status>;
pub type hvd_listener_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        event: *const hvd_event,
    )>;
pub type hvd_reshard_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        shard: *mut hvd_shard,
    ) -> i32>;
pub type hvd_lost_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        sentence: *const c_char,
    ) -> i32>;
pub type hvd_add_host_fn =
    Option<unsafe extern "C" fn(
        sink: *mut c_void,
        name: *const c_char,
        slots: i32,
    ) -> i32>;
pub type hvd_discover_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        add: hvd_add_host_fn,
        sink: *mut c_void,
    ) -> i32>;
pub type hvd_launch_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        launch: *const hvd_launch,
    ) -> i32>;
pub type hvd_stop_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        worker: u64,
        force: i32,
    )>;
pub type hvd_output_fn =
    Option<unsafe extern "C" fn(
        userdata: *mut c_void,
        rank: i32,
        host: *const c_char,
        slot: i32,
        is_stderr: i32,
        line: *const c_char,
    )>;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_error {
    pub struct_size: usize,
    pub status: hvd_status,
    pub rank: i32,
    pub generation: u64,
    pub vendor_code: i64,
    pub backend: [c_char; 16],
    pub message: [c_char; 512],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
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
    pub term: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_backend_info {
    pub struct_size: usize,
    pub name: [c_char; 16],
    pub version: [c_char; 64],
    pub path: [c_char; 512],
    pub detail: [c_char; 256],
    pub dtypes: u64,
    pub collectives: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_tensor {
    pub struct_size: usize,
    pub data: *mut c_void,
    pub dtype: hvd_dtype,
    pub ndim: i32,
    pub shape: [i64; 8],
    pub memory: hvd_memory,
    pub device: i32,
    pub stream: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
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

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_request {
    pub struct_size: usize,
    pub collective: hvd_collective,
    pub root: i32,
    pub name: *const c_char,
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

#[repr(C)]
#[derive(Clone, Copy, Debug)]
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
    pub written_bytes: u64,
    pub shard_bytes: u64,
    pub copy_bytes: u64,
    pub fed_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
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
    pub reason: [c_char; 256],
    pub spares: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_event {
    pub struct_size: usize,
    pub kind: hvd_event_kind,
    pub lost: u32,
    pub sequence: u64,
    pub generation: u64,
    pub membership_epoch: u64,
    pub rank: i32,
    pub size: i32,
    pub message: [c_char; 256],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_available_backend_info {
    pub struct_size: usize,
    pub name: [c_char; 16],
    pub version: [c_char; 64],
    pub path: [c_char; 512],
    pub usable: i32,
    pub abi_version: u32,
    pub memories: u64,
    pub dtypes: u64,
    pub collectives: u64,
    pub local: i32,
    pub max_instances: i32,
    pub reason: [c_char; 512],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_backend_choice_info {
    pub struct_size: usize,
    pub name: [c_char; 16],
    pub reason: [c_char; 512],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_sampler_options {
    pub struct_size: usize,
    pub samples: u64,
    pub batch_size: u64,
    pub seed: u64,
    pub in_order: i32,
    pub padding: hvd_padding,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_sampler_batch {
    pub struct_size: usize,
    pub generation: u64,
    pub epoch: u64,
    pub position: u64,
    pub count: u64,
    pub total: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_sampler_info {
    pub struct_size: usize,
    pub epoch: u64,
    pub samples: u64,
    pub batch_size: u64,
    pub processed: u64,
    pub remaining: u64,
    pub rounds: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_shard {
    pub struct_size: usize,
    pub key: *const c_char,
    pub dtype: hvd_dtype,
    pub rank: i32,
    pub size: i32,
    pub reserved: i32,
    pub global_elements: i64,
    pub offset: i64,
    pub elements: i64,
    pub data: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hvd_launch {
    pub struct_size: usize,
    pub worker: u64,
    pub host: *const c_char,
    pub slot: i32,
    pub environment: *const *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
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
    pub sentence: [c_char; 512],
    pub stall: [c_char; 512],
    pub try_again: i32,
    pub stalled: i32,
    pub term: u64,
    pub goodput: f64,
    pub commits_per_second: f64,
    pub commits: u64,
    pub sync_bytes: u64,
    pub wall_ns: i64,
    pub last_recovery_ns: i64,
}

extern "C" {
    pub fn hvd_status_name(
        status: hvd_status,
    ) -> *const c_char;
    pub fn hvd_version(
    ) -> *const c_char;
    pub fn hvd_free(
        memory: *mut c_void,
    );
    pub fn hvd_options_create(
        ret_options: *mut *mut hvd_options,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_options_destroy(
        options: *mut hvd_options,
    );
    pub fn hvd_options_set(
        options: *mut hvd_options,
        key: *const c_char,
        text: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_options_set_int(
        options: *mut hvd_options,
        key: *const c_char,
        value: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_options_set_duration(
        options: *mut hvd_options,
        key: *const c_char,
        value_ns: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_options_set_bool(
        options: *mut hvd_options,
        key: *const c_char,
        value: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_options_get(
        options: *mut hvd_options,
        key: *const c_char,
        ret_text: *mut *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_options_describe(
    ) -> *const c_char;
    pub fn hvd_options_set_log(
        options: *mut hvd_options,
        level: hvd_log_level,
        log: hvd_log_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_init(
        options: *const hvd_options,
        ret_context: *mut *mut hvd_context,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_shutdown(
        context: *mut hvd_context,
        timeout_ns: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_leave(
        context: *mut hvd_context,
        timeout_ns: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_has_left(
        context: *mut hvd_context,
    ) -> i32;
    pub fn hvd_get_leave_fd(
        context: *mut hvd_context,
        ret_fd: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_abort(
        context: *mut hvd_context,
        reason: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_destroy(
        context: *mut hvd_context,
    );
    pub fn hvd_get_membership(
        context: *mut hvd_context,
        ret_membership: *mut hvd_membership_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_rank(
        context: *mut hvd_context,
    ) -> i32;
    pub fn hvd_size(
        context: *mut hvd_context,
    ) -> i32;
    pub fn hvd_local_rank(
        context: *mut hvd_context,
    ) -> i32;
    pub fn hvd_local_size(
        context: *mut hvd_context,
    ) -> i32;
    pub fn hvd_cross_rank(
        context: *mut hvd_context,
    ) -> i32;
    pub fn hvd_cross_size(
        context: *mut hvd_context,
    ) -> i32;
    pub fn hvd_generation(
        context: *mut hvd_context,
    ) -> u64;
    pub fn hvd_get_backend(
        context: *mut hvd_context,
        ret_info: *mut hvd_backend_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_dtype_size(
        dtype: hvd_dtype,
    ) -> usize;
    pub fn hvd_dtype_name(
        dtype: hvd_dtype,
    ) -> *const c_char;
    pub fn hvd_process_set_create(
        context: *mut hvd_context,
        name: *const c_char,
        ranks: *const i32,
        count: usize,
        rule: hvd_set_rule,
        ret_set: *mut *mut hvd_process_set,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_process_set_destroy(
        set: *mut hvd_process_set,
    );
    pub fn hvd_process_set_get_info(
        set: *mut hvd_process_set,
        ret_info: *mut hvd_process_set_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_process_set_get_ranks(
        set: *mut hvd_process_set,
        ret_ranks: *mut i32,
        count: *mut usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_allreduce(
        context: *mut hvd_context,
        name: *const c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        reduction: hvd_reduction,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_broadcast(
        context: *mut hvd_context,
        name: *const c_char,
        tensor: *mut hvd_tensor,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_allgather(
        context: *mut hvd_context,
        name: *const c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_reducescatter(
        context: *mut hvd_context,
        name: *const c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        reduction: hvd_reduction,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_alltoall(
        context: *mut hvd_context,
        name: *const c_char,
        input: *const hvd_tensor,
        splits: *const i64,
        output: *mut hvd_tensor,
        ret_received_splits: *mut i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_barrier(
        context: *mut hvd_context,
        name: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_broadcast_variables(
        context: *mut hvd_context,
        name: *const c_char,
        tensors: *mut hvd_tensor,
        count: usize,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_grouped_allreduce(
        context: *mut hvd_context,
        name: *const c_char,
        inputs: *const hvd_tensor,
        outputs: *mut hvd_tensor,
        count: usize,
        reduction: hvd_reduction,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_grouped_allgather(
        context: *mut hvd_context,
        name: *const c_char,
        inputs: *const hvd_tensor,
        outputs: *mut hvd_tensor,
        count: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_broadcast_object(
        context: *mut hvd_context,
        name: *const c_char,
        data: *mut *mut c_void,
        size: *mut usize,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_join(
        context: *mut hvd_context,
        ret_last_rank: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_submit(
        context: *mut hvd_context,
        request: *const hvd_request,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_submit_and_wait(
        context: *mut hvd_context,
        request: *const hvd_request,
        timeout_ns: i64,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_test(
        op: *mut hvd_op,
        ret_done: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_wait(
        op: *mut hvd_op,
        timeout_ns: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_get_fd(
        op: *mut hvd_op,
        ret_fd: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_get_error(
        op: *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_get_output(
        op: *mut hvd_op,
        index: usize,
        ret_output: *mut hvd_tensor,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_get_received_splits(
        op: *mut hvd_op,
        ret_splits: *mut i64,
        count: *mut usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_get_last_joined(
        op: *mut hvd_op,
        ret_rank: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_destroy(
        op: *mut hvd_op,
    );
    pub fn hvd_state_create(
        context: *mut hvd_context,
        ret_state: *mut *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_destroy(
        state: *mut hvd_state,
    );
    pub fn hvd_state_add_tensor(
        state: *mut hvd_state,
        key: *const c_char,
        tensor: *const hvd_tensor,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_add_value(
        state: *mut hvd_state,
        key: *const c_char,
        value: *mut c_void,
        size: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_add_object(
        state: *mut hvd_state,
        key: *const c_char,
        save: hvd_save_fn,
        load: hvd_load_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_lend(
        sink: *mut c_void,
        data: *const *const c_void,
        sizes: *const usize,
        count: usize,
    ) -> i32;
    pub fn hvd_state_lend_until_end(
        sink: *mut c_void,
        data: *const *const c_void,
        sizes: *const usize,
        count: usize,
    ) -> i32;
    pub fn hvd_state_remove(
        state: *mut hvd_state,
        key: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_set_data(
        state: *mut hvd_state,
        key: *const c_char,
        data: *mut c_void,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_on_reset(
        state: *mut hvd_state,
        reset: hvd_reset_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_commit(
        state: *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_commit_begin(
        state: *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_commit_end(
        state: *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_save(
        state: *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_check_host_updates(
        state: *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_restore(
        state: *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_sync(
        state: *mut hvd_state,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_revision(
        state: *mut hvd_state,
    ) -> u64;
    pub fn hvd_state_get_info(
        state: *mut hvd_state,
        ret_info: *mut hvd_state_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_run(
        context: *mut hvd_context,
        state: *mut hvd_state,
        train: hvd_train_fn,
        userdata: *mut c_void,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_run_begin(
        context: *mut hvd_context,
        state: *mut hvd_state,
        ret_loop: *mut *mut hvd_run_loop,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_run_next(
        r#loop: *mut hvd_run_loop,
        last: hvd_status,
        ret_again: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_run_end(
        r#loop: *mut hvd_run_loop,
    );
    pub fn hvd_get_recovery_count(
        context: *mut hvd_context,
        ret_count: *mut usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_get_recovery(
        context: *mut hvd_context,
        index: usize,
        ret_recovery: *mut hvd_recovery_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_register_listener(
        context: *mut hvd_context,
        kinds: hvd_event_kind,
        listener: hvd_listener_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        ret_listener: *mut u64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_remove_listener(
        context: *mut hvd_context,
        listener: u64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_get_event_fd(
        context: *mut hvd_context,
        ret_fd: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_next_event(
        context: *mut hvd_context,
        ret_event: *mut hvd_event,
        ret_available: *mut i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_timeline_start(
        context: *mut hvd_context,
        path: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_timeline_stop(
        context: *mut hvd_context,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_get_available_backend_count(
        options: *const hvd_options,
        ret_count: *mut usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_get_available_backend(
        options: *const hvd_options,
        index: usize,
        ret_info: *mut hvd_available_backend_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_get_backend_choice(
        context: *mut hvd_context,
        memory: hvd_memory,
        dtype: hvd_dtype,
        collective: hvd_collective,
        ret_choice: *mut hvd_backend_choice_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_context_create(
        options: *const hvd_options,
        ret_context: *mut *mut hvd_context,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_connect(
        context: *mut hvd_context,
        timeout_ns: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_connect_begin(
        context: *mut hvd_context,
        timeout_ns: i64,
        ret_op: *mut *mut hvd_op,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_op_abandon(
        op: *mut hvd_op,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_allgather_object(
        context: *mut hvd_context,
        name: *const c_char,
        data: *const c_void,
        size: usize,
        ret_data: *mut *mut c_void,
        ret_sizes: *mut usize,
        count: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_gather_object(
        context: *mut hvd_context,
        name: *const c_char,
        data: *const c_void,
        size: usize,
        ret_data: *mut *mut c_void,
        ret_sizes: *mut usize,
        count: usize,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_send(
        context: *mut hvd_context,
        name: *const c_char,
        tensor: *const hvd_tensor,
        to: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_receive(
        context: *mut hvd_context,
        name: *const c_char,
        tensor: *mut hvd_tensor,
        from: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_reduce(
        context: *mut hvd_context,
        name: *const c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        reduction: hvd_reduction,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_gather(
        context: *mut hvd_context,
        name: *const c_char,
        input: *const hvd_tensor,
        output: *mut hvd_tensor,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_scatter(
        context: *mut hvd_context,
        name: *const c_char,
        input: *const hvd_tensor,
        splits: *const i64,
        output: *mut hvd_tensor,
        root: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_sampler_create(
        context: *mut hvd_context,
        options: *const hvd_sampler_options,
        ret_sampler: *mut *mut hvd_sampler,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_sampler_destroy(
        sampler: *mut hvd_sampler,
    );
    pub fn hvd_state_add_sampler(
        state: *mut hvd_state,
        key: *const c_char,
        sampler: *mut hvd_sampler,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_sampler_next(
        sampler: *mut hvd_sampler,
        after: *const hvd_sampler_batch,
        indices: *mut u64,
        room: usize,
        ret_batch: *mut hvd_sampler_batch,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_sampler_record(
        sampler: *mut hvd_sampler,
        batch: *const hvd_sampler_batch,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_sampler_set_epoch(
        sampler: *mut hvd_sampler,
        epoch: u64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_sampler_get_info(
        sampler: *mut hvd_sampler,
        ret_info: *mut hvd_sampler_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_sampler_save(
        sampler: *mut hvd_sampler,
        data: *mut c_void,
        room: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_sampler_load(
        sampler: *mut hvd_sampler,
        data: *const c_void,
        size: usize,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_add_shard(
        state: *mut hvd_state,
        key: *const c_char,
        tensor: *const hvd_tensor,
        global_elements: i64,
        offset: i64,
        copies: i32,
        reshard: hvd_reshard_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_add_shard_with_parity(
        state: *mut hvd_state,
        key: *const c_char,
        tensor: *const hvd_tensor,
        global_elements: i64,
        offset: i64,
        parity: i32,
        reshard: hvd_reshard_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_shard_range(
        global_elements: i64,
        rank: i32,
        size: i32,
        ret_offset: *mut i64,
        ret_elements: *mut i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_state_on_lost(
        state: *mut hvd_state,
        lost: hvd_lost_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_create(
        options: *const hvd_options,
        ret_driver: *mut *mut hvd_driver,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_set_command(
        driver: *mut hvd_driver,
        argv: *const *const c_char,
        environment: *const *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_set_discovery(
        driver: *mut hvd_driver,
        discover: hvd_discover_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_set_launcher(
        driver: *mut hvd_driver,
        start: hvd_launch_fn,
        stop: hvd_stop_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_worker_exited(
        driver: *mut hvd_driver,
        worker: u64,
        exit_status: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_set_output(
        driver: *mut hvd_driver,
        output: hvd_output_fn,
        userdata: *mut c_void,
        destroy: hvd_destroy_fn,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_start(
        driver: *mut hvd_driver,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_wait(
        driver: *mut hvd_driver,
        timeout_ns: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_stop(
        driver: *mut hvd_driver,
        reason: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_drain(
        driver: *mut hvd_driver,
        host: *const c_char,
        timeout_ns: i64,
        reason: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_undrain(
        driver: *mut hvd_driver,
        host: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_scale(
        driver: *mut hvd_driver,
        size: i32,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_get_status(
        driver: *mut hvd_driver,
        ret_status: *mut hvd_driver_status_info,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_describe(
        driver: *mut hvd_driver,
        format: hvd_driver_format,
        ret_text: *mut *mut c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_command(
        options: *const hvd_options,
        verb: *const c_char,
        argument: *const c_char,
        timeout_ns: i64,
        ret_text: *mut *mut c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_driver_destroy(
        driver: *mut hvd_driver,
    );
    pub fn hvd_agent_create(
        options: *const hvd_options,
        ret_agent: *mut *mut hvd_agent,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_agent_set_command(
        agent: *mut hvd_agent,
        argv: *const *const c_char,
        environment: *const *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_agent_start(
        agent: *mut hvd_agent,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_agent_wait(
        agent: *mut hvd_agent,
        timeout_ns: i64,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_agent_stop(
        agent: *mut hvd_agent,
        reason: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_agent_drain(
        agent: *mut hvd_agent,
        timeout_ns: i64,
        reason: *const c_char,
        error: *mut hvd_error,
    ) -> hvd_status;
    pub fn hvd_agent_destroy(
        agent: *mut hvd_agent,
    );
}

#[cfg(test)]
mod layout {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structs_are_as_in_the_headers() {
        assert_eq!(size_of::<hvd_error>(), 560);
        assert_eq!(offset_of!(hvd_error, struct_size), 0);
        assert_eq!(offset_of!(hvd_error, status), 8);
        assert_eq!(offset_of!(hvd_error, rank), 12);
        assert_eq!(offset_of!(hvd_error, generation), 16);
        assert_eq!(offset_of!(hvd_error, vendor_code), 24);
        assert_eq!(offset_of!(hvd_error, backend), 32);
        assert_eq!(offset_of!(hvd_error, message), 48);
        assert_eq!(size_of::<hvd_membership_info>(), 64);
        assert_eq!(offset_of!(hvd_membership_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_membership_info, rank), 8);
        assert_eq!(offset_of!(hvd_membership_info, size), 12);
        assert_eq!(offset_of!(hvd_membership_info, local_rank), 16);
        assert_eq!(offset_of!(hvd_membership_info, local_size), 20);
        assert_eq!(offset_of!(hvd_membership_info, cross_rank), 24);
        assert_eq!(offset_of!(hvd_membership_info, cross_size), 28);
        assert_eq!(offset_of!(hvd_membership_info, generation), 32);
        assert_eq!(offset_of!(hvd_membership_info, membership_epoch), 40);
        assert_eq!(offset_of!(hvd_membership_info, worker), 48);
        assert_eq!(offset_of!(hvd_membership_info, term), 56);
        assert_eq!(size_of::<hvd_backend_info>(), 872);
        assert_eq!(offset_of!(hvd_backend_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_backend_info, name), 8);
        assert_eq!(offset_of!(hvd_backend_info, version), 24);
        assert_eq!(offset_of!(hvd_backend_info, path), 88);
        assert_eq!(offset_of!(hvd_backend_info, detail), 600);
        assert_eq!(offset_of!(hvd_backend_info, dtypes), 856);
        assert_eq!(offset_of!(hvd_backend_info, collectives), 864);
        assert_eq!(size_of::<hvd_tensor>(), 104);
        assert_eq!(offset_of!(hvd_tensor, struct_size), 0);
        assert_eq!(offset_of!(hvd_tensor, data), 8);
        assert_eq!(offset_of!(hvd_tensor, dtype), 16);
        assert_eq!(offset_of!(hvd_tensor, ndim), 20);
        assert_eq!(offset_of!(hvd_tensor, shape), 24);
        assert_eq!(offset_of!(hvd_tensor, memory), 88);
        assert_eq!(offset_of!(hvd_tensor, device), 92);
        assert_eq!(offset_of!(hvd_tensor, stream), 96);
        assert_eq!(size_of::<hvd_process_set_info>(), 40);
        assert_eq!(offset_of!(hvd_process_set_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_process_set_info, rank), 8);
        assert_eq!(offset_of!(hvd_process_set_info, size), 12);
        assert_eq!(offset_of!(hvd_process_set_info, local_rank), 16);
        assert_eq!(offset_of!(hvd_process_set_info, local_size), 20);
        assert_eq!(offset_of!(hvd_process_set_info, cross_rank), 24);
        assert_eq!(offset_of!(hvd_process_set_info, cross_size), 28);
        assert_eq!(offset_of!(hvd_process_set_info, generation), 32);
        assert_eq!(size_of::<hvd_request>(), 104);
        assert_eq!(offset_of!(hvd_request, struct_size), 0);
        assert_eq!(offset_of!(hvd_request, collective), 8);
        assert_eq!(offset_of!(hvd_request, root), 12);
        assert_eq!(offset_of!(hvd_request, name), 16);
        assert_eq!(offset_of!(hvd_request, inputs), 24);
        assert_eq!(offset_of!(hvd_request, outputs), 32);
        assert_eq!(offset_of!(hvd_request, count), 40);
        assert_eq!(offset_of!(hvd_request, reduction), 48);
        assert_eq!(offset_of!(hvd_request, priority), 52);
        assert_eq!(offset_of!(hvd_request, prescale), 56);
        assert_eq!(offset_of!(hvd_request, postscale), 64);
        assert_eq!(offset_of!(hvd_request, splits), 72);
        assert_eq!(offset_of!(hvd_request, split_count), 80);
        assert_eq!(offset_of!(hvd_request, process_set), 88);
        assert_eq!(offset_of!(hvd_request, timeout_ns), 96);
        assert_eq!(size_of::<hvd_state_info>(), 104);
        assert_eq!(offset_of!(hvd_state_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_state_info, revision), 8);
        assert_eq!(offset_of!(hvd_state_info, commits), 16);
        assert_eq!(offset_of!(hvd_state_info, restores), 24);
        assert_eq!(offset_of!(hvd_state_info, syncs), 32);
        assert_eq!(offset_of!(hvd_state_info, bytes), 40);
        assert_eq!(offset_of!(hvd_state_info, sync_sent_bytes), 48);
        assert_eq!(offset_of!(hvd_state_info, sync_received_bytes), 56);
        assert_eq!(offset_of!(hvd_state_info, last_commit_ns), 64);
        assert_eq!(offset_of!(hvd_state_info, written_bytes), 72);
        assert_eq!(offset_of!(hvd_state_info, shard_bytes), 80);
        assert_eq!(offset_of!(hvd_state_info, copy_bytes), 88);
        assert_eq!(offset_of!(hvd_state_info, fed_bytes), 96);
        assert_eq!(size_of::<hvd_recovery_info>(), 384);
        assert_eq!(offset_of!(hvd_recovery_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_recovery_info, from_generation), 8);
        assert_eq!(offset_of!(hvd_recovery_info, to_generation), 16);
        assert_eq!(offset_of!(hvd_recovery_info, cause), 24);
        assert_eq!(offset_of!(hvd_recovery_info, from_size), 28);
        assert_eq!(offset_of!(hvd_recovery_info, to_size), 32);
        assert_eq!(offset_of!(hvd_recovery_info, attempts), 36);
        assert_eq!(offset_of!(hvd_recovery_info, revision), 40);
        assert_eq!(offset_of!(hvd_recovery_info, began_at_ns), 48);
        assert_eq!(offset_of!(hvd_recovery_info, detection_ns), 56);
        assert_eq!(offset_of!(hvd_recovery_info, abort_ns), 64);
        assert_eq!(offset_of!(hvd_recovery_info, restore_ns), 72);
        assert_eq!(offset_of!(hvd_recovery_info, forming_ns), 80);
        assert_eq!(offset_of!(hvd_recovery_info, connecting_ns), 88);
        assert_eq!(offset_of!(hvd_recovery_info, sync_ns), 96);
        assert_eq!(offset_of!(hvd_recovery_info, total_ns), 104);
        assert_eq!(offset_of!(hvd_recovery_info, sync_bytes), 112);
        assert_eq!(offset_of!(hvd_recovery_info, reason), 120);
        assert_eq!(offset_of!(hvd_recovery_info, spares), 376);
        assert_eq!(size_of::<hvd_event>(), 304);
        assert_eq!(offset_of!(hvd_event, struct_size), 0);
        assert_eq!(offset_of!(hvd_event, kind), 8);
        assert_eq!(offset_of!(hvd_event, lost), 12);
        assert_eq!(offset_of!(hvd_event, sequence), 16);
        assert_eq!(offset_of!(hvd_event, generation), 24);
        assert_eq!(offset_of!(hvd_event, membership_epoch), 32);
        assert_eq!(offset_of!(hvd_event, rank), 40);
        assert_eq!(offset_of!(hvd_event, size), 44);
        assert_eq!(offset_of!(hvd_event, message), 48);
        assert_eq!(size_of::<hvd_available_backend_info>(), 1152);
        assert_eq!(offset_of!(hvd_available_backend_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_available_backend_info, name), 8);
        assert_eq!(offset_of!(hvd_available_backend_info, version), 24);
        assert_eq!(offset_of!(hvd_available_backend_info, path), 88);
        assert_eq!(offset_of!(hvd_available_backend_info, usable), 600);
        assert_eq!(offset_of!(hvd_available_backend_info, abi_version), 604);
        assert_eq!(offset_of!(hvd_available_backend_info, memories), 608);
        assert_eq!(offset_of!(hvd_available_backend_info, dtypes), 616);
        assert_eq!(offset_of!(hvd_available_backend_info, collectives), 624);
        assert_eq!(offset_of!(hvd_available_backend_info, local), 632);
        assert_eq!(offset_of!(hvd_available_backend_info, max_instances), 636);
        assert_eq!(offset_of!(hvd_available_backend_info, reason), 640);
        assert_eq!(size_of::<hvd_backend_choice_info>(), 536);
        assert_eq!(offset_of!(hvd_backend_choice_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_backend_choice_info, name), 8);
        assert_eq!(offset_of!(hvd_backend_choice_info, reason), 24);
        assert_eq!(size_of::<hvd_sampler_options>(), 40);
        assert_eq!(offset_of!(hvd_sampler_options, struct_size), 0);
        assert_eq!(offset_of!(hvd_sampler_options, samples), 8);
        assert_eq!(offset_of!(hvd_sampler_options, batch_size), 16);
        assert_eq!(offset_of!(hvd_sampler_options, seed), 24);
        assert_eq!(offset_of!(hvd_sampler_options, in_order), 32);
        assert_eq!(offset_of!(hvd_sampler_options, padding), 36);
        assert_eq!(size_of::<hvd_sampler_batch>(), 48);
        assert_eq!(offset_of!(hvd_sampler_batch, struct_size), 0);
        assert_eq!(offset_of!(hvd_sampler_batch, generation), 8);
        assert_eq!(offset_of!(hvd_sampler_batch, epoch), 16);
        assert_eq!(offset_of!(hvd_sampler_batch, position), 24);
        assert_eq!(offset_of!(hvd_sampler_batch, count), 32);
        assert_eq!(offset_of!(hvd_sampler_batch, total), 40);
        assert_eq!(size_of::<hvd_sampler_info>(), 56);
        assert_eq!(offset_of!(hvd_sampler_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_sampler_info, epoch), 8);
        assert_eq!(offset_of!(hvd_sampler_info, samples), 16);
        assert_eq!(offset_of!(hvd_sampler_info, batch_size), 24);
        assert_eq!(offset_of!(hvd_sampler_info, processed), 32);
        assert_eq!(offset_of!(hvd_sampler_info, remaining), 40);
        assert_eq!(offset_of!(hvd_sampler_info, rounds), 48);
        assert_eq!(size_of::<hvd_shard>(), 64);
        assert_eq!(offset_of!(hvd_shard, struct_size), 0);
        assert_eq!(offset_of!(hvd_shard, key), 8);
        assert_eq!(offset_of!(hvd_shard, dtype), 16);
        assert_eq!(offset_of!(hvd_shard, rank), 20);
        assert_eq!(offset_of!(hvd_shard, size), 24);
        assert_eq!(offset_of!(hvd_shard, reserved), 28);
        assert_eq!(offset_of!(hvd_shard, global_elements), 32);
        assert_eq!(offset_of!(hvd_shard, offset), 40);
        assert_eq!(offset_of!(hvd_shard, elements), 48);
        assert_eq!(offset_of!(hvd_shard, data), 56);
        assert_eq!(size_of::<hvd_launch>(), 40);
        assert_eq!(offset_of!(hvd_launch, struct_size), 0);
        assert_eq!(offset_of!(hvd_launch, worker), 8);
        assert_eq!(offset_of!(hvd_launch, host), 16);
        assert_eq!(offset_of!(hvd_launch, slot), 24);
        assert_eq!(offset_of!(hvd_launch, environment), 32);
        assert_eq!(size_of::<hvd_driver_status_info>(), 1144);
        assert_eq!(offset_of!(hvd_driver_status_info, struct_size), 0);
        assert_eq!(offset_of!(hvd_driver_status_info, phase), 8);
        assert_eq!(offset_of!(hvd_driver_status_info, size), 12);
        assert_eq!(offset_of!(hvd_driver_status_info, workers), 16);
        assert_eq!(offset_of!(hvd_driver_status_info, slots), 20);
        assert_eq!(offset_of!(hvd_driver_status_info, resets), 24);
        assert_eq!(offset_of!(hvd_driver_status_info, generation), 32);
        assert_eq!(offset_of!(hvd_driver_status_info, membership_epoch), 40);
        assert_eq!(offset_of!(hvd_driver_status_info, hosts_blocked), 48);
        assert_eq!(offset_of!(hvd_driver_status_info, port), 52);
        assert_eq!(offset_of!(hvd_driver_status_info, sentence), 56);
        assert_eq!(offset_of!(hvd_driver_status_info, stall), 568);
        assert_eq!(offset_of!(hvd_driver_status_info, try_again), 1080);
        assert_eq!(offset_of!(hvd_driver_status_info, stalled), 1084);
        assert_eq!(offset_of!(hvd_driver_status_info, term), 1088);
        assert_eq!(offset_of!(hvd_driver_status_info, goodput), 1096);
        assert_eq!(offset_of!(hvd_driver_status_info, commits_per_second), 1104);
        assert_eq!(offset_of!(hvd_driver_status_info, commits), 1112);
        assert_eq!(offset_of!(hvd_driver_status_info, sync_bytes), 1120);
        assert_eq!(offset_of!(hvd_driver_status_info, wall_ns), 1128);
        assert_eq!(offset_of!(hvd_driver_status_info, last_recovery_ns), 1136);
    }
}
