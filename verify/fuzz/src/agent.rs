//! What the agent reads: questions of processes, the kernel's type information, and what its program writes out.

use std::time::Instant;

use memlane_agent::kernel::{Btf, Record};
use memlane_agent::pairs::{Asker, Pairs, Verdict};
use memlane_socket::protocol::agent::{
    Across, Answer, LEN, Outcome, Parting, Question, Refusal, Role,
};

/// A question or an answer: refused, or the same after encoding it again.
pub fn agent_message(bytes: &[u8]) -> bool {
    let question = Question::decode(bytes);
    let answer = Answer::decode(bytes);
    let parting = Parting::decode(bytes);
    let kinds = [question.is_some(), answer.is_some(), parting.is_some()];
    assert!(kinds.iter().filter(|&&is| is).count() <= 1, "of one kind");
    if let Some(question) = question {
        assert_eq!(bytes.len(), LEN);
        assert_eq!(Question::decode(&question.encode()), Some(question));
    }
    if let Some(answer) = answer {
        let (encoded, len) = answer.encode();
        assert_eq!(bytes.len(), len);
        assert_eq!(Answer::decode(&encoded[..len]), Some(answer));
    }
    if let Some(parting) = parting {
        assert_eq!(bytes.len(), LEN);
        assert_eq!(Parting::decode(&parting.encode()), Some(parting));
    }
    kinds.contains(&true)
}

/// Any two sockets, whatever the kernel says of them: only ends with opposite roles meet, and each of them once.
pub fn agent_record(bytes: &[u8]) -> bool {
    let Some((one, rest)) = Record::from_bytes(bytes) else {
        return false;
    };
    let Some((other, _)) = Record::from_bytes(rest) else {
        return false;
    };
    let (mut pairs, now) = (Pairs::new(4), Instant::now());
    let asker = |process| Asker { process, id: 0 };
    let first = pairs.ask(asker(1), Role::Accepted, &one, now);
    let same_role = pairs.ask(asker(2), Role::Accepted, &other, now);
    assert!(!matches!(same_role, Verdict::Meet(_)), "two that accepted");
    let met = matches!(
        pairs.ask(asker(3), Role::Connected, &other, now),
        Verdict::Meet(_)
    );
    let again = pairs.ask(asker(4), Role::Connected, &other, now);
    assert!(
        !matches!(again, Verdict::Meet(_)),
        "the connection has its two ends"
    );
    first == Verdict::Wait && (met || one.inode != other.inode)
}

/// A file that says that it is the kernel's type information.
pub fn kernel_types(bytes: &[u8]) -> bool {
    let Ok(types) = Btf::parse(bytes.to_vec()) else {
        return false;
    };
    let _ = types.function("bpf_iter_task_file");
    let _ = types.offset("tcp_sock", "snd_una");
    let _ = types.offset("sock", "__sk_common.skc_net.net");
    true
}

/// Seeds of [`agent_message`].
pub(crate) fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let question = Question {
        id: 0x0102_0304_0506_0708,
        fd: 513,
        inode: 0x1122_3344,
        role: Role::Accepted,
    };
    let answer = |outcome| {
        let (bytes, len) = Answer { id: 7, outcome }.encode();
        bytes[..len].to_vec()
    };
    let across = Across {
        peer: 9,
        own: 0x85_0000,
        theirs: 0xa7_0000,
        ring_size: 32_768,
        serial: 2,
    };
    let parting = Parting { peer: 9, serial: 2 };
    vec![
        ("question", question.encode().to_vec()),
        ("meet", answer(Outcome::Meet { peer: 9 })),
        ("refuse", answer(Outcome::Refuse(Refusal::Forged))),
        ("across", answer(Outcome::Across(across))),
        ("part", parting.encode().to_vec()),
    ]
}

/// Seeds of [`agent_record`]: the two ends of a connection, and two of the same inode.
pub(crate) fn records() -> Vec<(&'static str, Vec<u8>)> {
    let end = |inode: u64, sends_from: u32, receives_from: u32| {
        let mut bytes = vec![0; Record::LEN];
        bytes[4] = 1; // established
        bytes[8..16].copy_from_slice(&inode.to_ne_bytes());
        bytes[16..20].copy_from_slice(&sends_from.to_ne_bytes());
        bytes[20..24].copy_from_slice(&receives_from.to_ne_bytes());
        bytes
    };
    vec![
        ("ends", [end(1, 100, 200), end(2, 199, 100)].concat()),
        ("same", [end(1, 100, 200), end(1, 199, 100)].concat()),
    ]
}

/// Seeds of [`kernel_types`]: a structure and a function.
pub(crate) fn types() -> Vec<(&'static str, Vec<u8>)> {
    let strings = b"\0tcp_sock\0snd_una\0bpf_iter_task_file\0int\0";
    let name = |n: &str| {
        let wanted = [b"\0", n.as_bytes(), b"\0"].concat();
        let at = strings.windows(wanted.len()).position(|w| w == wanted);
        at.map_or(0, |at| u32::try_from(at + 1).unwrap_or(0))
    };
    let words = [
        [name("int"), 1 << 24, 4, 32].to_vec(),
        [name("tcp_sock"), 4 << 24 | 1, 4, name("snd_una"), 1, 0].to_vec(),
        [0, 13 << 24, 0].to_vec(),
        [name("bpf_iter_task_file"), 12 << 24, 3].to_vec(),
    ]
    .concat();
    let types: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let len = |n: usize| u32::try_from(n).unwrap_or(0);
    let header = [
        24,
        0,
        len(types.len()),
        len(types.len()),
        len(strings.len()),
    ];
    let header = header.iter().flat_map(|word| word.to_ne_bytes());
    let mut file = 0xeb9f_u16.to_ne_bytes().to_vec();
    file.extend([1, 0]);
    file.extend(header);
    file.extend(types);
    file.extend(strings);
    vec![("small", file)]
}
