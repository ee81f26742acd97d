//! The steps at which a process can be made to fail: one table, which the tests run over. A new line is covered by itself.

/// In which part of a connection's life a step lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// From plain TCP to two lanes.
    Upgrade,
    /// A handshake that comes to nothing.
    Refusal,
    /// Bytes by either lane, and sleep.
    Transfer,
    /// What a sender does more in mode `copy`.
    Copying,
    /// Bytes that are made, and looked at, where they lie: streams by name only.
    Places,
    /// Back to TCP.
    Downgrade,
    /// The connection's end.
    Close,
}

/// Who gets there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Who connected.
    Client,
    /// Who accepted.
    Server,
    /// Each of both.
    Both,
}

macro_rules! steps {
    ($($part:ident { $($variant:ident $name:literal $side:ident $what:literal;)* })*) => {
        /// A step.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum Step {
            $($(#[doc = $what] $variant,)*)*
        }

        /// All of them, in the order of [`Step`]: name, part, who gets there.
        pub const STEPS: &[(&str, Part, Side)] =
            &[$($(($name, Part::$part, Side::$side),)*)*];
    };
}

steps! {
    Upgrade {
        NameBound "name-bound" Server "The rendezvous name is bound.";
        Proposing "proposing" Client "About to send the Proposal.";
        Proposed "proposed" Client "It has been sent.";
        ProposalCame "proposal-came" Server "It has been received, nothing has been looked at.";
        PeerProven "peer-proven" Both "The kernel has said who the peer is.";
        ChunkMade "chunk-made" Both "A chunk has been made and mapped; nobody knows of it.";
        DmbTaken "dmb-taken" Both "A DMB has been set aside for the peer.";
        Accepting "accepting" Server "About to send the Accept.";
        Accepted "accepted" Server "It has been sent.";
        AcceptCame "accept-came" Client "It has been received, nothing has been looked at.";
        Attached "attached" Both "The peer's DMB is attached.";
        Opening "opening" Both "Both modes are moving, both locks are held.";
        Activated "activated" Both "The sender has said where its stream stands.";
        Opened "opened" Both "This side's lanes are open.";
        Confirming "confirming" Client "About to send the Confirm.";
        Confirmed "confirmed" Client "It has been sent.";
        ConfirmCame "confirm-came" Server "It has been received, nothing has been looked at.";
    }
    Refusal {
        Declining "declining" Server "About to send a Decline.";
        Declined "declined" Server "It has been sent.";
        DeclineCame "decline-came" Client "It has been received, nothing has been looked at.";
    }
    Transfer {
        Waking "waking" Both "About to say that we are awake.";
        Awake "awake" Both "The peer may use the ring.";
        PartGrown "part-grown" Both "A larger part of the ring has been declared; no byte lies there.";
        PartShrunk "part-shrunk" Both "A smaller one has, behind a ring that was given back, and the run that wakes the receiver.";
        WritingSet "writing-set" Both "`writing` is set, no byte has been copied.";
        HalfCopied "half-copied" Both "Half of the bytes lie in the ring.";
        Copied "copied" Both "All of them do; they are not published.";
        Published "published" Both "They are; the receiver's ready word has not been told.";
        RunDeclared "run-declared" Both "Bytes are promised by TCP; none has been written.";
        RunHalfPaid "run-half-paid" Both "Half of them have been written.";
        RunWritten "run-written" Both "They have been written; the promise is not booked as kept.";
        TakenFromRing "taken-from-ring" Both "Bytes were copied out of the ring; the sender has not been told.";
        RingTold "ring-told" Both "It has been told.";
        TakenFromTcp "taken-from-tcp" Both "Bytes of a run were taken; the sender has not been told.";
        Parking "parking" Both "`PARKED` is set; the sender may be writing.";
        Parked "parked" Both "About to sleep on TCP.";
        Shedding "shedding" Both "About to give a parked ring's pages back.";
        Shed "shed" Both "They are gone; the sender has not been told.";
        ShedTold "shed-told" Both "It has been told.";
    }
    Copying {
        BufferMade "buffer-made" Both "The sender has a buffer of its own, and no lane.";
        Buffered "buffered" Both "The bytes lie there; `writing` is set, the device has not been told.";
        DeviceWrote "device-wrote" Both "It has taken them to the ring; they are not published.";
    }
    Places {
        PlaceGiven "place-given" Both "A place in the peer's ring has been given away; `writing` is set.";
        PlaceFilled "place-filled" Both "It is full; the bytes are not published.";
        Shown "shown" Both "Bytes have been shown where they lie.";
        ShownTaken "shown-taken" Both "They are done with, and the sender knows.";
        HeldHere "held-here" Both "Bytes are in use where they lie; the sender waits for their room.";
        HeldReleased "held-released" Both "They are in use no more, and the sender knows.";
    }
    Downgrade {
        EndingTx "ending-tx" Both "About to say that all further bytes go by TCP.";
        EndedTx "ended-tx" Both "It has been said; the options are still the lane's.";
        EndingRx "ending-rx" Both "`TCP_ONLY` is set; the sender may be writing.";
        EndedRx "ended-rx" Both "What is left in the ring is being read.";
    }
    Close {
        Closing "closing" Both "The program closes its last descriptor.";
        ClosingTold "closing-told" Both "The peer has been told; the descriptor is still open.";
        Abandoning "abandoning" Both "It is closed; the DMBs are still held.";
        Detached "detached" Both "The peer's DMB is let go of.";
        Released "released" Both "Ours is given back.";
    }
}
