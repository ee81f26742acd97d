//! A volume is taken from a client that is not there: what the server does, and what the client that had it is told.

mod remote;
#[allow(dead_code)] // other tests use the rest
mod server_driver;

use memlane_block::client::error::OpenError;
use memlane_block::client::{Access, Status};
use memlane_block::server::Shared;
use memlane_block::volume::{Errno, Op, Volume as _};
use memlane_block::wire::{Busy, Wish};
use memlane_transport::engine::Direction;
use memlane_transport::engine::path::PathId;
use memlane_transport::port::{Identity, News, Service as _};
use remote::rig::Rig;
use server_driver::{Driver, Folder, RW, io};
use std::time::Duration;

const TAKE: Wish = Wish {
    take_over: true,
    again: None,
};
const EIO: Result<(), Errno> = Err(Errno(libc::EIO));

fn again(id: u32) -> Wish {
    Wish {
        again: Some(id),
        ..Wish::default()
    }
}

// ---- the server --------------------------------------------------------------

#[test]
fn who_is_not_there_loses_the_volume_and_is_refused_for_ever() {
    let folder = Folder::new("take-over");
    let path = folder.file("disk", 1 << 20);
    let shared = Shared::new(folder.config()).expect("a server");
    // Two services: as two threads have them.
    let (mut here, mut there) = (Driver::new(&shared), Driver::new(&shared));
    let (one, two) = (here.session("one"), there.session("two"));
    let old = here.open(one, "disk", RW).expect("the first writer");
    let write = io(old.device_id, Op::Write, 0, 512).encode();

    // While it has a path, nobody takes it, and who has it is told.
    for wish in [TAKE, Wish::default()] {
        let refused = there.wish(two, "disk", RW, wish);
        let busy = Busy::new("one", None);
        assert_eq!(refused, Err((libc::EBUSY, Some(busy))));
    }
    // Nor does anybody who does not say so.
    here.reached(one, 0);
    let (errno, busy) = there
        .wish(two, "disk", RW, Wish::default())
        .expect_err("held");
    assert_eq!(
        (errno, busy.map(|busy| busy.alive)),
        (libc::EBUSY, Some(false))
    );
    // It comes back in time, and keeps it.
    here.reached(one, 1);
    assert!(there.wish(two, "disk", RW, TAKE).is_err());
    assert_eq!(here.write(one, &write, &[1; 512]), Ok(()));

    here.reached(one, 0);
    let soon = there.wish(two, "disk", RW, TAKE);
    assert_eq!(soon, Err((libc::EAGAIN, None)));
    // From here on, whatever its thread does.
    assert_eq!(here.write(one, &write, &[2; 512]), Err(libc::ENODEV));
    here.notices();
    let new = there.wish(two, "disk", RW, TAKE).expect("it is free");

    // It comes back: none of its requests, no new one, and no open gets through; also when the volume is free again.
    here.reached(one, 1);
    assert_eq!(here.write(one, &write, &[2; 512]), Err(libc::ENODEV));
    let refused = Err((libc::ESTALE, None));
    assert_eq!(here.wish(one, "disk", RW, again(old.device_id)), refused);
    there.close(two, new.device_id).expect("closed");
    assert_eq!(here.wish(one, "disk", RW, again(old.device_id)), refused);
    // Its session was forgotten meanwhile.
    here.service.gone(one);
    let one = here.session("one");
    assert_eq!(here.wish(one, "disk", RW, again(old.device_id)), refused);
    let file = std::fs::read(path).expect("the file");
    assert!(file[..512] == [1; 512]);
    // Somebody who knows nothing of all that may have it.
    assert!(here.open(one, "disk", RW).is_ok());
}

#[test]
fn it_is_free_when_the_last_request_is_over() {
    let folder = Folder::new("take-over-late");
    folder.file("disk", 1 << 20);
    let mut driver = Driver::of(folder.config());
    let (one, two) = (driver.session("one"), driver.session("two"));
    let old = driver.open(one, "disk", RW).expect("the first writer");
    let write = io(old.device_id, Op::Write, 0, 512).encode();
    let late = driver.begin(one, Direction::Write, &write, 512);
    driver.reached(one, 0);
    let ending = Err((libc::EAGAIN, None));
    assert_eq!(driver.wish(two, "disk", RW, TAKE), ending);
    driver.notices();
    // Its result was not asked for yet, unless it came along with the answer to the open.
    if driver.finished.iter().all(|done| done.permit != late) {
        assert_eq!(driver.wish(two, "disk", RW, TAKE), ending);
    }
    assert_eq!(driver.end(late), 0);
    driver.wish(two, "disk", RW, TAKE).expect("it is free");
}

#[test]
fn only_the_same_user_or_root_or_who_may_have_the_session_takes_and_only_from_who_can_be_told() {
    let folder = Folder::new("take-over-who");
    folder.file("disk", 1 << 20);
    let mut driver = Driver::of(folder.config());
    let user = |uid| Identity::Local { uid, pid: 1 };
    // The sessions that it is good for: the one that has the volume is "one", the other "two".
    let certified =
        |names: &[&str]| Identity::Certificate(names.iter().map(|&name| name.into()).collect());
    let takes = |driver: &mut Driver, from: &Identity, by: &Identity| {
        let (one, two) = (driver.session_of("one", from), driver.session_of("two", by));
        driver.open(one, "disk", RW).expect("the first writer");
        driver.reached(one, 0);
        let told = driver.wish(two, "disk", RW, TAKE).map(|_| ());
        driver.service.gone(one);
        driver.service.gone(two);
        driver.notices();
        told == Err((libc::EAGAIN, None))
    };
    for (from, by, may) in [
        (user(7), user(7), true),
        (user(7), user(0), true),
        (user(7), user(8), false),
        (user(0), user(8), false),
        (certified(&["one"]), certified(&["two", "one"]), true),
        (certified(&["one"]), certified(&["*"]), true),
        (certified(&["one"]), certified(&[]), true),
        (certified(&["one", "two"]), certified(&["two"]), false),
        (certified(&["one"]), user(0), false),
        (certified(&["one"]), Identity::Unknown, false),
        (user(0), certified(&["*"]), false),
        (Identity::Unknown, user(0), false),
        (Identity::Unknown, Identity::Unknown, true),
    ] {
        assert_eq!(takes(&mut driver, &from, &by), may, "{from:?} {by:?}");
    }
    // A mainline client would open it again and go on.
    let (bare, two) = (driver.bare_session("bare"), driver.session("two"));
    driver.open(bare, "disk", RW).expect("a writer");
    driver.reached(bare, 0);
    let told = driver.wish(two, "disk", RW, TAKE);
    assert!(matches!(told, Err((libc::EBUSY, Some(busy))) if busy.name() == "bare"));
}

// ---- the client --------------------------------------------------------------

#[test]
fn a_client_says_what_it_wants_and_that_it_had_the_volume() {
    let mut rig = Rig::new(&[("disk", 1 << 16)]);
    let volume = rig.take_over("disk").expect("opened");
    assert_eq!(rig.session.world().machine.wish, TAKE);
    let id = |rig: &Rig| *rig.session.world().machine.open.keys().next().expect("one");
    let (before, mask) = (id(&rig), (1 << 24) - 1);
    rig.restart(false);
    rig.pass(Duration::from_secs(1));
    assert_eq!(volume.status(), Status::Open);
    assert_eq!(rig.session.world().machine.wish, again(before & mask));
    // Not of a server that would not understand it.
    let mut rig = Rig::new(&[("disk", 1 << 16)]);
    rig.session.world().machine.caps = 0;
    let error = rig.take_over("disk").expect_err("impossible");
    assert_eq!(error, OpenError::CannotTakeOver);
    assert_eq!(rig.session.world().machine.opens, 0);
    assert!(rig.try_open("disk", Access::ReadWrite).is_ok());
}

#[test]
fn a_client_that_lost_its_volume_fails_all_requests_and_never_opens_it_again() {
    let mut rig = Rig::new(&[("disk", 1 << 16)]);
    let volume = rig.open("disk");
    let mut queue = volume.queue().expect("a queue");
    assert_eq!(rig.write(&mut queue, 0, 1), Ok(()));
    // The server has forgotten it, and says why.
    let stale = u16::try_from(libc::ESTALE).expect("a number");
    rig.session.world().machine.open.clear();
    rig.session.world().machine.disk("disk").refuse = Some(stale);
    assert_eq!(rig.write(&mut queue, 0, 2), EIO);
    assert_eq!(volume.status(), Status::Failed(OpenError::Taken));
    let opens = rig.session.world().machine.opens;
    // Nothing brings it back: no news, no restart, nobody who asks.
    rig.session.world().machine.disk("disk").refuse = None;
    rig.session.tell(News::PathUp(PathId(0)));
    rig.pass(Duration::from_secs(10));
    rig.restart(false);
    rig.pass(Duration::from_secs(10));
    volume.look_again();
    rig.pass(Duration::from_secs(10));
    assert_eq!(rig.write(&mut queue, 0, 2), EIO);
    assert_eq!(volume.status(), Status::Failed(OpenError::Taken));
    assert_eq!(rig.session.world().machine.opens, opens);
    assert_eq!(rig.session.world().machine.disk("disk").now[0], 1);
    // Anew is another thing.
    drop((volume, queue));
    rig.drive();
    assert!(rig.try_open("disk", Access::ReadWrite).is_ok());
}

#[test]
fn who_waits_in_vain_for_the_last_requests_of_another_is_told_so() {
    let mut rig = Rig::new(&[("disk", 1 << 16)]);
    let again = u16::try_from(libc::EAGAIN).expect("a number");
    rig.session.world().machine.disk("disk").refuse = Some(again);
    assert_eq!(rig.take_over("disk").expect_err("never"), OpenError::Ending);
    assert!(rig.session.world().machine.opens > 10, "it was asked again");
}

#[test]
fn a_client_without_requests_notices_too() {
    let mut rig = Rig::new(&[("disk", 1 << 16)]);
    let volume = rig.open("disk");
    let stale = u16::try_from(libc::ESTALE).expect("a number");
    rig.session.world().machine.disk("disk").refuse = Some(stale);
    rig.session.tell(News::PathUp(PathId(0)));
    rig.pass(Duration::from_secs(1));
    assert_eq!(volume.status(), Status::Failed(OpenError::Taken));
}
