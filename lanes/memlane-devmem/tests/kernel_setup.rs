//! An interface is prepared for the kernel's own path and put back as it was: against one that is a test, which may
//! refuse each step; and what real interfaces that cannot do it say.

use memlane_devmem::error::KernelError;
use memlane_devmem::io::kernel::nic::{Nic, RealNic};
use memlane_devmem::io::kernel::{Interface, Missing, Setup, SetupError, Wanted, missing};
use memlane_devmem::wire::ethtool::Rings;
use memlane_devmem::wire::netdev::RxQueue;
use memlane_devmem::wire::steer::{Flow, Target};
use memlane_netlink::Refused;
use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::rc::Rc;

/// An interface's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Settings {
    rings: Rings,
    rules_on: bool,
    spread: Vec<u32>,
    contexts: BTreeMap<u32, Vec<u32>>,
    rules: BTreeMap<u32, (String, Target)>,
    bound: Vec<u32>,
}

#[derive(Debug)]
struct State {
    now: Settings,
    queues: u32,
    /// Calls are counted; these are refused.
    calls: usize,
    refuse: Vec<usize>,
    errno: Errno,
    log: Vec<&'static str>,
}

/// An interface with the kernel's own rules.
#[derive(Clone, Debug)]
struct Card(Rc<RefCell<State>>);

impl Card {
    fn new(now: Settings, queues: u32) -> Card {
        Card(Rc::new(RefCell::new(State {
            now,
            queues,
            calls: 0,
            refuse: Vec::new(),
            errno: Errno::IO,
            log: Vec::new(),
        })))
    }

    fn refuses(self, nth: &[usize]) -> Card {
        self.0.borrow_mut().refuse = nth.to_vec();
        self
    }

    fn now(&self) -> Settings {
        self.0.borrow().now.clone()
    }

    fn called(&self, what: &'static str) -> Result<std::cell::RefMut<'_, State>, Refused> {
        let mut state = self.0.borrow_mut();
        state.calls += 1;
        if state.refuse.contains(&state.calls) {
            return Err(Refused {
                errno: state.errno,
                words: Some(format!("call {} was refused", state.calls)),
            });
        }
        state.log.push(what);
        Ok(state)
    }
}

impl Nic for Card {
    fn name(&self) -> &str {
        "card0"
    }

    fn queues(&mut self) -> Result<Vec<RxQueue>, Refused> {
        let state = self.called("queues")?;
        let bound = |id| state.now.bound.contains(&id).then_some(5);
        let queue = |id| RxQueue {
            id,
            bound: bound(id),
        };
        Ok((0..state.queues).map(queue).collect())
    }

    fn rings(&mut self) -> Result<Rings, Refused> {
        Ok(self.called("rings")?.now.rings)
    }

    fn set_rings(&mut self, to: Rings) -> Result<(), Refused> {
        let mut state = self.called("set_rings")?;
        assert!(
            state.now.bound.is_empty(),
            "a bound queue must have split headers"
        );
        state.now.rings = to;
        Ok(())
    }

    fn rules(&mut self) -> Result<bool, Refused> {
        Ok(self.called("rules")?.now.rules_on)
    }

    fn set_rules(&mut self, on: bool) -> Result<(), Refused> {
        let mut state = self.called("set_rules")?;
        assert!(on || state.now.rules.is_empty(), "rules are there");
        state.now.rules_on = on;
        Ok(())
    }

    fn spread(&mut self) -> Result<Vec<u32>, Refused> {
        Ok(self.called("spread")?.now.spread.clone())
    }

    fn set_spread(&mut self, table: &[u32]) -> Result<(), Refused> {
        let mut state = self.called("set_spread")?;
        assert!(
            state.now.bound.is_empty(),
            "others' packets would go to the device"
        );
        let (entries, queues) = (state.now.spread.len(), state.queues);
        state.now.spread = match table {
            [] => (0..queues).cycle().take(entries).collect(),
            table => table.to_vec(),
        };
        assert_eq!(state.now.spread.len(), entries);
        Ok(())
    }

    fn add_context(&mut self, table: &[u32]) -> Result<u32, Refused> {
        let mut state = self.called("add_context")?;
        assert!(table.iter().all(|queue| state.now.bound.contains(queue)));
        state.now.contexts.insert(3, table.to_vec());
        Ok(3)
    }

    fn drop_context(&mut self, context: u32) -> Result<(), Refused> {
        let mut state = self.called("drop_context")?;
        assert!(state.now.rules.is_empty(), "a rule leads there");
        state.now.contexts.remove(&context).ok_or(Errno::NOENT)?;
        Ok(())
    }

    fn add_rule(&mut self, flow: &Flow, target: Target) -> Result<u32, Refused> {
        let mut state = self.called("add_rule")?;
        assert!(state.now.rules_on && state.now.rings.split == Some(2));
        match target {
            Target::Queue(queue) => assert!(state.now.bound.contains(&queue)),
            Target::Context(context) => assert!(state.now.contexts.contains_key(&context)),
        }
        state.now.rules.insert(9, (flow.to_string(), target));
        Ok(9)
    }

    fn drop_rule(&mut self, place: u32) -> Result<(), Refused> {
        let mut state = self.called("drop_rule")?;
        state.now.rules.remove(&place).ok_or(Errno::NOENT)?;
        Ok(())
    }

    fn bind(&mut self, _: BorrowedFd<'_>, queues: &[u32]) -> Result<u32, KernelError> {
        let mut state = self.called("bind").map_err(KernelError::Refused)?;
        let rings = state.now.rings;
        assert!(rings.split == Some(2) && rings.from.unwrap_or(0) == 0);
        let spread = &state.now.spread;
        assert!(
            spread.iter().all(|queue| !queues.contains(queue)),
            "others go there"
        );
        state.now.bound = queues.to_vec();
        Ok(77)
    }

    fn unbind(&mut self) {
        let mut state = self.0.borrow_mut();
        assert!(state.now.rules.is_empty(), "a flow would find it unbound");
        state.log.push("unbind");
        state.now.bound.clear();
    }
}

fn rings(split: u8, from: Option<u32>) -> Rings {
    Rings {
        split: Some(split),
        from,
    }
}

fn plain() -> Settings {
    Settings {
        rings: rings(0, Some(256)),
        rules_on: false,
        spread: (0..8).cycle().take(128).collect(),
        contexts: BTreeMap::new(),
        rules: BTreeMap::new(),
        bound: Vec::new(),
    }
}

fn wanted(queues: u32) -> Wanted {
    Wanted {
        queues,
        flow: Some("tcp dst 192.0.2.1:5201".parse().unwrap()),
    }
}

fn prepare(card: &Card, queues: u32) -> Result<Setup<Card>, SetupError> {
    let nothing = File::open("/dev/null").unwrap();
    Setup::prepare(card.clone(), nothing.as_fd(), &wanted(queues))
}

#[test]
fn one_queue_gets_the_flow_and_everything_is_put_back() {
    let card = Card::new(plain(), 8);
    let mut setup = prepare(&card, 1).unwrap();
    assert_eq!(setup.binding(), 77);
    let now = card.now();
    assert_eq!((now.rings, now.rules_on), (rings(2, Some(0)), true));
    assert_eq!(now.spread, (0..7).cycle().take(128).collect::<Vec<_>>());
    assert_eq!(now.bound, [7]);
    let rule = ("tcp dst 192.0.2.1/32:5201".to_owned(), Target::Queue(7));
    assert_eq!(now.rules, BTreeMap::from([(9, rule)]));
    assert_eq!(setup.changed().len(), 5, "{:?}", setup.changed());
    assert_eq!(setup.put_back(), [""; 0]);
    assert_eq!(card.now(), plain());
    drop(setup);
    let back = [
        "drop_rule",
        "unbind",
        "set_spread",
        "set_rules",
        "set_rings",
    ];
    assert!(
        card.0.borrow().log.ends_with(&back),
        "once, the last change first"
    );
}

#[test]
fn several_queues_are_a_context_of_their_own() {
    let card = Card::new(plain(), 8);
    let setup = prepare(&card, 3).unwrap();
    let now = card.now();
    assert_eq!(now.bound, [5, 6, 7]);
    assert_eq!(
        now.contexts[&3],
        (5..8).cycle().take(128).collect::<Vec<_>>()
    );
    assert_eq!(now.rules[&9].1, Target::Context(3));
    drop(setup);
    assert_eq!(card.now(), plain());
}

#[test]
fn what_is_as_it_must_be_is_not_touched() {
    let mut settings = plain();
    settings.rings = rings(2, None);
    settings.rules_on = true;
    settings.spread = vec![0, 1, 2, 2];
    let card = Card::new(settings.clone(), 8);
    let setup = prepare(&card, 2).unwrap();
    assert!(
        !card
            .0
            .borrow()
            .log
            .iter()
            .any(|call| call.starts_with("set_"))
    );
    drop(setup);
    assert_eq!(card.now(), settings);
}

#[test]
fn headers_that_are_split_off_long_packets_only_are_split_off_all() {
    for before in [rings(2, Some(256)), rings(1, Some(0)), rings(1, None)] {
        let mut settings = plain();
        settings.rings = before;
        let card = Card::new(settings.clone(), 8);
        let setup = prepare(&card, 1).unwrap();
        assert_eq!(card.now().rings, rings(2, before.from.map(|_| 0)));
        drop(setup);
        assert_eq!(card.now(), settings);
    }
}

#[test]
fn a_table_that_is_not_the_driver_s_own_comes_back_as_it_was() {
    let mut settings = plain();
    settings.spread = vec![7, 7, 0, 3];
    let card = Card::new(settings.clone(), 8);
    drop(prepare(&card, 1).unwrap());
    assert_eq!(card.now(), settings);
}

/// Each call in turn is refused: everything is as before, and the sentence has a command in it.
#[test]
fn a_refusal_half_way_takes_everything_back_and_says_what_would_mend_it() {
    for queues in [1, 3] {
        let calls = {
            let card = Card::new(plain(), 8);
            let setup = prepare(&card, queues).unwrap();
            let calls = card.0.borrow().calls;
            drop(setup);
            calls
        };
        assert!(calls >= 9, "{calls}");
        for nth in 1..=calls {
            let card = Card::new(plain(), 8).refuses(&[nth]);
            let error = prepare(&card, queues).unwrap_err();
            assert_eq!(card.now(), plain(), "call {nth}: {error}");
            let text = error.to_string();
            assert!(text.contains(&format!("call {nth} was refused")), "{text}");
            let mends = ["ethtool -", "memlane devmem", "--queues"];
            assert!(mends.iter().any(|mend| error.mend.contains(mend)), "{text}");
            assert!(
                error.left.is_empty() && text.starts_with("card0: "),
                "{text}"
            );
        }
    }
}

#[test]
fn what_cannot_be_put_back_is_said_and_the_rest_is() {
    let card = Card::new(plain(), 8);
    let mut setup = prepare(&card, 1).unwrap();
    let before = card.0.borrow().calls;
    // The rule goes; then the table is refused.
    card.0.borrow_mut().refuse = vec![before + 2];
    let left = setup.put_back();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].starts_with("ethtool -X card0 default"), "{left:?}");
    let now = card.now();
    assert_eq!(
        (now.rings, now.rules_on, now.bound),
        (plain().rings, false, Vec::new())
    );
    // Half-way in, and back.
    let card = Card::new(plain(), 8).refuses(&[8, 9]);
    let error = prepare(&card, 1).unwrap_err();
    assert!(
        error.to_string().contains("left changed: ethtool"),
        "{error}"
    );
}

#[test]
fn without_a_flow_nothing_is_changed_and_what_is_missing_is_named() {
    let nothing = File::open("/dev/null").unwrap();
    let only_bound = Wanted {
        queues: 2,
        flow: None,
    };
    let prepare = |card: &Card| Setup::prepare(card.clone(), nothing.as_fd(), &only_bound);
    let mut settings = plain();
    for (rings_are, spread, lacks) in [
        (
            rings(1, Some(0)),
            vec![0, 1],
            "ethtool -G card0 tcp-data-split on",
        ),
        (rings(2, Some(256)), vec![0, 1], "hds-thresh 0"),
        (rings(2, Some(0)), vec![0, 6], "ethtool -X card0 equal 6"),
    ] {
        (settings.rings, settings.spread) = (rings_are, spread);
        let card = Card::new(settings.clone(), 8);
        let error = prepare(&card).unwrap_err();
        assert!(error.to_string().contains(lacks), "{error}");
        assert_eq!(card.now(), settings);
    }
    settings.spread = vec![0, 5];
    let card = Card::new(settings.clone(), 8);
    let setup = prepare(&card).unwrap();
    assert_eq!(card.now().bound, [6, 7]);
    drop(setup);
    assert_eq!(card.now(), settings);
}

#[test]
fn queues_that_others_need_or_have_are_not_taken() {
    for (queues, all) in [(0, 8), (8, 8), (9, 8), (1, 1)] {
        let card = Card::new(plain(), all);
        let error = prepare(&card, queues).unwrap_err();
        assert!(
            error.to_string().contains("ethtool -L card0 combined"),
            "{error}"
        );
        assert_eq!(card.now(), plain());
    }
    let down = prepare(&Card::new(plain(), 0), 1).unwrap_err();
    assert!(down.mend.contains("ip link set card0 up"), "{down}");
    let mut settings = plain();
    settings.bound = vec![6];
    let card = Card::new(settings, 8);
    let error = prepare(&card, 2).unwrap_err();
    assert!(error.why.contains("queue 6 is bound already"), "{error}");
}

fn ip(args: &str) -> bool {
    let status = Command::new("ip").args(args.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

/// What interfaces without such queues say, each in its own way: nothing is changed, and the sentence has a command.
#[test]
fn real_interfaces_that_cannot_say_so_and_are_left_as_they_are() {
    // SAFETY: only the namespaces of this thread, which this test has to itself.
    if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        return eprintln!("SKIPPED: no network namespace: {errno}");
    }
    let made = [
        ("lo", true),
        (
            "w1veth",
            ip("link add w1veth numrxqueues 4 type veth peer name w1peer numrxqueues 4"),
        ),
        ("w1dummy", ip("link add w1dummy type dummy")),
        ("w1tap", ip("tuntap add w1tap mode tap multi_queue")),
        ("w1bridge", ip("link add w1bridge type bridge")),
    ];
    let nothing = File::open("/dev/null").unwrap();
    let mut seen = 0;
    for (name, made) in made {
        let Some(index) = made.then(|| index_of(name)).flatten() else {
            eprintln!("SKIPPED {name}: there is none");
            continue;
        };
        let interface = Interface {
            name: name.into(),
            index,
        };
        ip(&format!("link set {name} up"));
        let mut nic = RealNic::new(interface.clone());
        let before = (nic.rings().ok(), nic.rules().ok(), nic.spread().ok());
        let error =
            Setup::prepare(RealNic::new(interface), nothing.as_fd(), &wanted(1)).unwrap_err();
        eprintln!("{name}: {error}");
        assert!(error.left.is_empty(), "{error}");
        assert!(error.mend.contains("ethtool"), "{error}");
        let after = (nic.rings().ok(), nic.rules().ok(), nic.spread().ok());
        assert_eq!(before, after, "{name} was changed");
        let no_such = nic.drop_rule(5).unwrap_err();
        assert_eq!(no_such.errno, Errno::OPNOTSUPP, "{name}");
        let flow = wanted(1).flow.unwrap();
        let refused = nic.add_rule(&flow, Target::Queue(0)).unwrap_err();
        assert_eq!(refused.errno, Errno::OPNOTSUPP, "{name}");
        let refused = nic.add_context(&[0]).unwrap_err();
        assert_eq!(refused.errno, Errno::OPNOTSUPP, "{name}");
        seen += 1;
    }
    assert!(seen > 0);
    let gone = Interface {
        name: "w1gone".into(),
        index: 0x7fff_fff0,
    };
    let mut nic = RealNic::new(gone);
    assert_eq!(nic.rings().unwrap_err().errno, Errno::NODEV);
    assert_eq!(nic.spread().unwrap_err().errno, Errno::NODEV);
    let mut nic = RealNic::new(Interface {
        name: "a-name-that-is-too-long".into(),
        index: 1,
    });
    assert_eq!(nic.rules().unwrap_err().errno, Errno::NODEV);
}

/// Who may not is told what it takes: each request that changes something, without CAP_NET_ADMIN.
#[test]
fn who_may_not_change_an_interface_is_told_what_it_takes() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    // Of this thread alone.
    let mine = capabilities(None).unwrap();
    let mut less = mine;
    less.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, less).unwrap();
    let Some(index) = index_of("lo") else {
        return eprintln!("SKIPPED: no loopback interface");
    };
    let lo = Interface {
        name: "lo".into(),
        index,
    };
    let nothing = File::open("/dev/null").unwrap();
    let mut nic = RealNic::new(lo.clone());
    let flow = wanted(1).flow.unwrap();
    let refused = [
        nic.set_rings(rings(2, None)).unwrap_err(),
        nic.set_rules(true).unwrap_err(),
        nic.set_spread(&[0]).unwrap_err(),
        nic.add_context(&[0]).unwrap_err(),
        nic.drop_context(1).unwrap_err(),
        nic.add_rule(&flow, Target::Queue(0)).unwrap_err(),
        nic.drop_rule(0).unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(refused.errno, Errno::PERM, "{refused}");
    }
    let bound = nic.bind(nothing.as_fd(), &[0]).unwrap_err();
    let lacks = missing(&lo);
    if matches!(bound, KernelError::NoFamily(_)) {
        eprintln!("SKIPPED: {bound}");
    } else if !matches!(lacks[..], [Missing::Command(..), ..]) {
        assert!(bound.to_string().contains("CAP_NET_ADMIN"), "{bound}");
        assert!(lacks.contains(&Missing::Permission), "{lacks:?}");
    }
    set_capabilities(None, mine).unwrap();
    // As a step, too.
    let card = Card::new(plain(), 8);
    card.0.borrow_mut().errno = Errno::PERM;
    let error = prepare(&card.clone().refuses(&[3]), 1).unwrap_err();
    assert!(error.why.contains("CAP_NET_ADMIN"), "{error}");
}

/// In this thread's network, which `/sys` does not show.
fn index_of(name: &str) -> Option<u32> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0");
    let socket = socket
        .or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"))
        .ok()?;
    rustix::net::netdevice::name_to_index(&socket, name).ok()
}
