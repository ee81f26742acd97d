//! The two programs. One runs when a connection of the group is established, and puts its socket into the map, by its own
//! addresses. The other runs when something is sent, and looks for the socket whose addresses are the same, the other way
//! round.

use memlane_agent::bpf::assembler::{Assembler, Instruction, R1, R2, R3, R4, R6, Width};

/// Bytes of a key: own address, the peer's, own port, the peer's; 4 bytes each. Addresses are in network order, ports in the
/// host's.
pub(super) const KEY: u32 = 16;

/// Where the key lies, from the frame pointer: its four words.
const OWN_ADDRESS: i16 = -16;
const PEER_ADDRESS: i16 = -12;
const OWN_PORT: i16 = -8;
const PEER_PORT: i16 = -4;

// Numbers of helpers: `__BPF_FUNC_MAPPER` in `include/uapi/linux/bpf.h`.
const BPF_SOCK_HASH_UPDATE: i32 = 70;
const BPF_MSG_REDIRECT_HASH: i32 = 71;

/// `AF_INET`.
const INET: i32 = 2;
/// `BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB`; the number of the passive one is one more.
const ESTABLISHED: i32 = 4;
/// All but the lowest bit.
const EITHER: i32 = -2;
/// `BPF_F_INGRESS`: into the receiving queue.
const INGRESS: i32 = 1;
/// `SK_PASS`, also where nothing was found: then the bytes go by TCP. For the program of the group it means "go on".
const PASS: i32 = 1;

/// Where a context has a connection's words. The peer's port is in network order, one's own in the host's.
struct Context {
    family: i16,
    peer_address: i16,
    own_address: i16,
    peer_port: i16,
    own_port: i16,
}

/// `struct bpf_sock_ops`, of which the first word says what has happened.
const SOCK_OPS: Context = Context {
    family: 20,
    peer_address: 24,
    own_address: 28,
    peer_port: 64,
    own_port: 68,
};

/// `struct sk_msg_md`.
const SK_MSG: Context = Context {
    family: 16,
    peer_address: 20,
    own_address: 24,
    peer_port: 60,
    own_port: 64,
};

/// Puts an established socket into the map.
pub(super) fn collects(map: i32) -> Vec<Instruction> {
    let mut p = Assembler::default();
    p.copy(R6, R1);
    p.load(Width::U32, R2, R6, 0);
    p.mask(R2, EITHER);
    p.leave_unless(R2, ESTABLISHED);
    let own = [OWN_ADDRESS, PEER_ADDRESS, OWN_PORT, PEER_PORT];
    key(&mut p, &SOCK_OPS, own);
    p.copy(R1, R6);
    p.load_map(R2, map);
    p.stack_address(R3, OWN_ADDRESS);
    p.set(R4, 0);
    p.call(BPF_SOCK_HASH_UPDATE);
    p.finish(PASS)
}

/// Sends to the socket at the other end, if the map has it.
pub(super) fn redirects(map: i32) -> Vec<Instruction> {
    let mut p = Assembler::default();
    p.copy(R6, R1);
    let peers = [PEER_ADDRESS, OWN_ADDRESS, PEER_PORT, OWN_PORT];
    key(&mut p, &SK_MSG, peers);
    p.copy(R1, R6);
    p.load_map(R2, map);
    p.stack_address(R3, OWN_ADDRESS);
    p.set(R4, INGRESS);
    p.call(BPF_MSG_REDIRECT_HASH);
    p.finish(PASS)
}

/// Makes the key of the connection in a context, whose address R6 has. `places` are those of own and the peer's address, own
/// and the peer's port.
fn key(p: &mut Assembler, context: &Context, places: [i16; 4]) {
    p.load(Width::U32, R2, R6, context.family);
    p.leave_unless(R2, INET);
    p.load(Width::U32, R2, R6, context.own_address);
    p.store_on_stack(Width::U32, places[0], R2);
    p.load(Width::U32, R2, R6, context.peer_address);
    p.store_on_stack(Width::U32, places[1], R2);
    p.load(Width::U32, R2, R6, context.own_port);
    p.store_on_stack(Width::U32, places[2], R2);
    p.load(Width::U32, R2, R6, context.peer_port);
    p.to_network_order(R2);
    p.store_on_stack(Width::U32, places[3], R2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_looked_for_under_the_key_of_the_other_end() {
        // The stores of both programs: which word of the context goes where.
        let stores = |code: &[Instruction]| -> Vec<(i16, i16)> {
            let mut from = 0;
            let mut told = Vec::new();
            for one in code {
                let off = i16::from_ne_bytes([one[2], one[3]]);
                match one[0] {
                    0x61 => from = off,
                    0x63 => told.push((from, off)),
                    _ => {}
                }
            }
            told
        };
        assert_eq!(
            stores(&collects(3)),
            [(28, -16), (24, -12), (68, -8), (64, -4)]
        );
        assert_eq!(
            stores(&redirects(3)),
            [(24, -12), (20, -16), (64, -4), (60, -8)]
        );
    }
}
