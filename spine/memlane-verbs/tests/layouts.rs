//! Every structure that is shared with rdma-core has the sizes and offsets that its headers say.

use memlane_verbs::layout::{
    CmEvent, CmId, CompletionChannel, CompletionQueue, ConnectionParameters, Context, Element,
    EventChannel, MemoryRegion, PairSettings, ProtectionDomain, QueuePair, ReceiveRequest,
    SendRequest, WorkCompletion,
};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A C expression, and what it must be.
type Fact = (String, usize);

macro_rules! facts {
    ($($ours:ident = $theirs:literal { $($field:ident = $name:literal),* $(,)? } $(size $size:literal)?;)*) => {
        vec![$(
            $((concat!("sizeof(struct ", $size, ")").to_owned(), size_of::<$ours>()),)?
            $((concat!("offsetof(struct ", $theirs, ", ", $name, ")").to_owned(), offset_of!($ours, $field)),)*
        )*]
    };
}

fn facts() -> Vec<Fact> {
    facts! {
        Context = "ibv_context" {
            device = "device", poll_cq = "ops.poll_cq", req_notify_cq = "ops.req_notify_cq",
            post_send = "ops.post_send", post_recv = "ops.post_recv",
            vectors = "num_comp_vectors",
        };
        CompletionChannel = "ibv_comp_channel" { context = "context", fd = "fd", count = "refcnt" } size "ibv_comp_channel";
        CompletionQueue = "ibv_cq" { context = "context" };
        QueuePair = "ibv_qp" { context = "context" };
        ProtectionDomain = "ibv_pd" { context = "context" };
        MemoryRegion = "ibv_mr" {
            context = "context", domain = "pd", addr = "addr", length = "length", handle = "handle",
            local_key = "lkey", remote_key = "rkey",
        } size "ibv_mr";
        Element = "ibv_sge" { addr = "addr", length = "length", key = "lkey" } size "ibv_sge";
        SendRequest = "ibv_send_wr" {
            number = "wr_id", next = "next", elements = "sg_list", count = "num_sge", opcode = "opcode",
            flags = "send_flags", immediate = "imm_data", remote_addr = "wr.rdma.remote_addr",
            remote_key = "wr.rdma.rkey",
        } size "ibv_send_wr";
        ReceiveRequest = "ibv_recv_wr" {
            number = "wr_id", next = "next", elements = "sg_list", count = "num_sge",
        } size "ibv_recv_wr";
        WorkCompletion = "ibv_wc" {
            number = "wr_id", status = "status", opcode = "opcode", vendor = "vendor_err", length = "byte_len",
            immediate = "imm_data", pair = "qp_num", source = "src_qp", flags = "wc_flags",
            partition = "pkey_index", slid = "slid", level = "sl", path_bits = "dlid_path_bits",
        } size "ibv_wc";
        PairSettings = "ibv_qp_init_attr" {
            context = "qp_context", send_queue = "send_cq", receive_queue = "recv_cq", shared_receives = "srq",
            sends = "cap.max_send_wr", receives = "cap.max_recv_wr", send_elements = "cap.max_send_sge",
            receive_elements = "cap.max_recv_sge", inline = "cap.max_inline_data", kind = "qp_type",
            signal_all = "sq_sig_all",
        } size "ibv_qp_init_attr";
        EventChannel = "rdma_event_channel" { fd = "fd" };
        CmId = "rdma_cm_id" {
            verbs = "verbs", channel = "channel", context = "context", pair = "qp",
            source = "route.addr.src_storage", destination = "route.addr.dst_storage",
        };
        ConnectionParameters = "rdma_conn_param" {
            private = "private_data", private_len = "private_data_len", responder_resources = "responder_resources",
            initiator_depth = "initiator_depth", flow_control = "flow_control", retries = "retry_count",
            not_ready_retries = "rnr_retry_count", shared_receives = "srq", pair = "qp_num",
        } size "rdma_conn_param";
        CmEvent = "rdma_cm_event" {
            id = "id", listener = "listen_id", kind = "event", status = "status", parameters = "param.conn",
        };
    }
}

/// The numbers of the headers that `layout.rs` repeats.
const NUMBERS: [(&str, i64); 27] = [
    ("RDMA_PS_TCP", 0x106),
    ("IBV_QPT_RC", 2),
    ("IBV_ACCESS_LOCAL_WRITE", 1),
    ("IBV_ACCESS_REMOTE_WRITE", 2),
    ("IBV_SEND_SIGNALED", 2),
    ("IBV_SEND_INLINE", 8),
    ("IBV_WC_RECV", 128),
    ("IBV_WC_RECV_RDMA_WITH_IMM", 129),
    ("IBV_WC_WITH_IMM", 2),
    ("IBV_WR_RDMA_WRITE", 0),
    ("IBV_WR_RDMA_WRITE_WITH_IMM", 1),
    ("IBV_WR_SEND", 2),
    ("IBV_WR_SEND_WITH_IMM", 3),
    ("IBV_WR_SEND_WITH_INV", 9),
    ("IBV_WC_WR_FLUSH_ERR", 5),
    ("IBV_WC_REM_ACCESS_ERR", 10),
    ("IBV_WC_RETRY_EXC_ERR", 12),
    ("IBV_WC_RNR_RETRY_EXC_ERR", 13),
    ("IBV_WC_GENERAL_ERR", 21),
    ("RDMA_CM_EVENT_ADDR_ERROR", 1),
    ("RDMA_CM_EVENT_CONNECT_REQUEST", 4),
    ("RDMA_CM_EVENT_UNREACHABLE", 7),
    ("RDMA_CM_EVENT_REJECTED", 8),
    ("RDMA_CM_EVENT_ESTABLISHED", 9),
    ("RDMA_CM_EVENT_DEVICE_REMOVAL", 11),
    ("RDMA_CM_EVENT_ADDR_CHANGE", 14),
    ("RDMA_CM_EVENT_TIMEWAIT_EXIT", 15),
];

fn program() -> String {
    let mut c = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n",
    );
    for (expression, value) in facts() {
        let _ = writeln!(
            c,
            "_Static_assert({expression} == {value}, \"{expression}\");"
        );
    }
    for (name, value) in NUMBERS {
        let _ = writeln!(c, "_Static_assert((long){name} == {value}, \"{name}\");");
    }
    c
}

fn headers() -> Option<&'static Path> {
    let found = Path::new("/usr/include");
    let both = ["infiniband/verbs.h", "rdma/rdma_cma.h"];
    both.iter()
        .all(|header| found.join(header).exists())
        .then_some(found)
}

fn compile(c: &str, name: &str) -> (bool, String) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("{name}.c"));
    std::fs::write(&file, c).expect("a file");
    let mut compiler = Command::new("cc");
    let output = compiler
        .args(["-fsyntax-only", "-std=gnu11"])
        .arg(&file)
        .output()
        .expect("a C compiler");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

#[test]
fn structures_and_numbers_are_those_of_rdma_cores_headers() {
    if headers().is_none() {
        println!("SKIPPED: install libibverbs-dev and librdmacm-dev");
        return;
    }
    let (ok, said) = compile(&program(), "layouts");
    assert!(ok, "{said}");
}

#[test]
fn a_structure_that_differs_is_noticed() {
    if headers().is_none() {
        println!("SKIPPED: install libibverbs-dev and librdmacm-dev");
        return;
    }
    let wrong = program().replace("sizeof(struct ibv_wc) == 48", "sizeof(struct ibv_wc) == 56");
    let (ok, said) = compile(&wrong, "wrong");
    assert!(!ok && said.contains("ibv_wc"), "{said}");
}
