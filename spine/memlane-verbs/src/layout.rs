//! rdma-core's structures and numbers, as far as they are used: `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`.
//!
//! They are part of the ABI of `libibverbs.so.1` and `librdmacm.so.1`, and have not changed since version 1 of each. Names
//! in comments are those of the headers. `tests/layouts.rs` compares every offset with the headers, where they are installed.

use core::ffi::{c_int, c_uint, c_void};

/// Handles behind which nothing is looked at.
pub(crate) type Handle = *mut c_void;

/// `struct ibv_context`, with its `struct ibv_context_ops`: the data path's functions are reached through it, by inline
/// functions of the header.
#[repr(C)]
pub struct Context {
    /// `device`.
    pub device: Handle,
    /// `ops`, from its first entry to the 11th.
    pub ops_before_poll_cq: [Handle; 11],
    /// `ops.poll_cq`.
    pub poll_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int,
    /// `ops.req_notify_cq`.
    pub req_notify_cq: unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int,
    /// `ops`, from its 14th entry to the 25th.
    pub ops_before_post_send: [Handle; 12],
    /// `ops.post_send`.
    pub post_send:
        unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int,
    /// `ops.post_recv`.
    pub post_recv: unsafe extern "C" fn(
        *mut QueuePair,
        *mut ReceiveRequest,
        *mut *mut ReceiveRequest,
    ) -> c_int,
    /// `ops`, from its 27th entry on, `cmd_fd` and `async_fd`.
    pub rest_of_ops: [Handle; 6],
    /// `num_comp_vectors`.
    pub vectors: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompletionChannel {
    /// `context`.
    pub context: *mut Context,
    /// `fd`.
    pub fd: c_int,
    /// `refcnt`.
    pub count: c_int,
}

/// `struct ibv_cq`, its beginning.
#[repr(C)]
pub struct CompletionQueue {
    /// `context`.
    pub context: *mut Context,
}

/// `struct ibv_qp`, its beginning.
#[repr(C)]
pub struct QueuePair {
    /// `context`.
    pub context: *mut Context,
}

/// `struct ibv_pd`, its beginning.
#[repr(C)]
pub struct ProtectionDomain {
    /// `context`.
    pub context: *mut Context,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct MemoryRegion {
    /// `context`.
    pub context: *mut Context,
    /// `pd`.
    pub domain: *mut ProtectionDomain,
    /// `addr`.
    pub addr: Handle,
    /// `length`.
    pub length: usize,
    /// `handle`.
    pub handle: u32,
    /// `lkey`.
    pub local_key: u32,
    /// `rkey`.
    pub remote_key: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Element {
    /// `addr`.
    pub addr: u64,
    /// `length`.
    pub length: u32,
    /// `lkey`.
    pub key: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub struct SendRequest {
    /// `wr_id`.
    pub number: u64,
    /// `next`.
    pub next: *mut SendRequest,
    /// `sg_list`.
    pub elements: *mut Element,
    /// `num_sge`.
    pub count: c_int,
    /// `opcode`.
    pub opcode: c_int,
    /// `send_flags`.
    pub flags: c_uint,
    /// `imm_data`, in network byte order, or `invalidate_rkey`.
    pub immediate: u32,
    /// `wr.rdma.remote_addr`.
    pub remote_addr: u64,
    /// `wr.rdma.rkey`.
    pub remote_key: u32,
    /// What is for other kinds of queue pairs.
    pub rest: [u32; 19],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct ReceiveRequest {
    /// `wr_id`.
    pub number: u64,
    /// `next`.
    pub next: *mut ReceiveRequest,
    /// `sg_list`.
    pub elements: *mut Element,
    /// `num_sge`.
    pub count: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkCompletion {
    /// `wr_id`.
    pub number: u64,
    /// `status`: `enum ibv_wc_status`.
    pub status: c_int,
    /// `opcode`: `enum ibv_wc_opcode`; only good if `status` is 0.
    pub opcode: c_int,
    /// `vendor_err`.
    pub vendor: u32,
    /// `byte_len`.
    pub length: u32,
    /// `imm_data`, in network byte order.
    pub immediate: u32,
    /// `qp_num`.
    pub pair: u32,
    /// `src_qp`.
    pub source: u32,
    /// `wc_flags`.
    pub flags: c_uint,
    /// `pkey_index`.
    pub partition: u16,
    /// `slid`.
    pub slid: u16,
    /// `sl`.
    pub level: u8,
    /// `dlid_path_bits`.
    pub path_bits: u8,
}

/// `struct ibv_qp_init_attr`, with its `struct ibv_qp_cap`.
#[repr(C)]
pub struct PairSettings {
    /// `qp_context`.
    pub context: Handle,
    /// `send_cq`.
    pub send_queue: *mut CompletionQueue,
    /// `recv_cq`.
    pub receive_queue: *mut CompletionQueue,
    /// `srq`.
    pub shared_receives: Handle,
    /// `cap.max_send_wr`.
    pub sends: u32,
    /// `cap.max_recv_wr`.
    pub receives: u32,
    /// `cap.max_send_sge`.
    pub send_elements: u32,
    /// `cap.max_recv_sge`.
    pub receive_elements: u32,
    /// `cap.max_inline_data`.
    pub inline: u32,
    /// `qp_type`.
    pub kind: c_int,
    /// `sq_sig_all`.
    pub signal_all: c_int,
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub struct EventChannel {
    /// `fd`.
    pub fd: c_int,
}

/// `struct rdma_cm_id`, its beginning.
#[repr(C)]
pub struct CmId {
    /// `verbs`: the device, once an address is bound or resolved.
    pub verbs: *mut Context,
    /// `channel`.
    pub channel: *mut EventChannel,
    /// `context`.
    pub context: Handle,
    /// `qp`.
    pub pair: *mut QueuePair,
    /// `route.addr.src_storage`.
    pub source: libc::sockaddr_storage,
    /// `route.addr.dst_storage`.
    pub destination: libc::sockaddr_storage,
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConnectionParameters {
    /// `private_data`.
    pub private: *const u8,
    /// `private_data_len`.
    pub private_len: u8,
    /// `responder_resources`: RDMA reads that the peer may have under way.
    pub responder_resources: u8,
    /// `initiator_depth`: RDMA reads of our own.
    pub initiator_depth: u8,
    /// `flow_control`.
    pub flow_control: u8,
    /// `retry_count`: 3 bits.
    pub retries: u8,
    /// `rnr_retry_count`: 3 bits; 7 means for ever.
    pub not_ready_retries: u8,
    /// `srq`.
    pub shared_receives: u8,
    /// `qp_num`.
    pub pair: u32,
}

/// `struct rdma_cm_event`.
#[repr(C)]
pub struct CmEvent {
    /// `id`.
    pub id: *mut CmId,
    /// `listen_id`.
    pub listener: *mut CmId,
    /// `event`: `enum rdma_cm_event_type`.
    pub kind: c_int,
    /// `status`: a negative error number, or the reason of a rejection.
    pub status: c_int,
    /// `param.conn`.
    pub parameters: ConnectionParameters,
}

/// `RDMA_PS_TCP` (`enum rdma_port_space`).
pub(crate) const PORT_SPACE_TCP: c_int = 0x0106;
/// `IBV_QPT_RC` (`enum ibv_qp_type`).
pub(crate) const RELIABLE_CONNECTED: c_int = 2;
/// `IBV_ACCESS_LOCAL_WRITE`, `IBV_ACCESS_REMOTE_WRITE` (`enum ibv_access_flags`).
pub(crate) const LOCAL_WRITE: c_int = 1;
pub(crate) const REMOTE_WRITE: c_int = 2;
/// `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE` (`enum ibv_send_flags`).
pub(crate) const SIGNALED: c_uint = 2;
pub(crate) const INLINE: c_uint = 8;
/// `IBV_WC_RECV`, `IBV_WC_RECV_RDMA_WITH_IMM` (`enum ibv_wc_opcode`).
pub(crate) const RECEIVED: c_int = 1 << 7;
pub(crate) const RECEIVED_IMMEDIATE: c_int = RECEIVED + 1;
/// `IBV_WC_WITH_IMM` (`enum ibv_wc_flags`).
pub(crate) const WITH_IMMEDIATE: c_uint = 1 << 1;

/// `enum ibv_wr_opcode`.
pub(crate) mod opcode {
    use core::ffi::c_int;
    pub(crate) const WRITE: c_int = 0;
    pub(crate) const WRITE_IMMEDIATE: c_int = 1;
    pub(crate) const SEND: c_int = 2;
    pub(crate) const SEND_IMMEDIATE: c_int = 3;
    pub(crate) const SEND_INVALIDATE: c_int = 9;
}

/// `enum rdma_cm_event_type`.
pub(crate) mod event {
    use core::ffi::c_int;
    pub(crate) const ADDR_RESOLVED: c_int = 0;
    pub(crate) const ADDR_ERROR: c_int = 1;
    pub(crate) const ROUTE_RESOLVED: c_int = 2;
    pub(crate) const ROUTE_ERROR: c_int = 3;
    pub(crate) const CONNECT_REQUEST: c_int = 4;
    pub(crate) const CONNECT_ERROR: c_int = 6;
    pub(crate) const UNREACHABLE: c_int = 7;
    pub(crate) const REJECTED: c_int = 8;
    pub(crate) const ESTABLISHED: c_int = 9;
    pub(crate) const DISCONNECTED: c_int = 10;
    pub(crate) const DEVICE_REMOVAL: c_int = 11;
    pub(crate) const ADDR_CHANGE: c_int = 14;
    pub(crate) const TIMEWAIT_EXIT: c_int = 15;
}
