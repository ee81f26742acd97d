//! The steps at which a process can be made to fail: one table, which the tests run over. A new line is covered by itself.

/// In which part of a connection's life a step lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The agent introduces the two processes, across network namespaces.
    Introduction,
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

        /// All steps in the order of `Step`: name, part, side.
        pub const STEPS: &[(&str, Part, Side)] =
            &[$($(($name, Part::$part, Side::$side),)*)*];
    };
}

steps! {
    Introduction {
        AgentReached "agent-reached" Both "The process has connected to the agent.";
        Asking "asking" Both "About to ask the agent who has the other end.";
        Asked "asked" Both "The question has been sent.";
        AnswerCame "answer-came" Both "The agent's answer has been received and not been read yet.";
        Met "met" Both "The channel to the other end is kept; nothing has been said over it.";
    }
    Upgrade {
        NameBound "name-bound" Server "The rendezvous name is bound.";
        Proposing "proposing" Client "About to send the Proposal.";
        Proposed "proposed" Client "The Proposal has been sent.";
        ProposalCame "proposal-came" Server "The Proposal has been received and not been read yet.";
        PeerProven "peer-proven" Both "The kernel has said who the peer is.";
        ChunkMade "chunk-made" Both "A chunk has been made and mapped; the peer does not know of it.";
        DmbTaken "dmb-taken" Both "A DMB has been set aside for the peer.";
        Accepting "accepting" Server "About to send the Accept.";
        Accepted "accepted" Server "The Accept has been sent.";
        AcceptCame "accept-came" Client "The Accept has been received and not been read yet.";
        Attached "attached" Both "The peer's DMB is attached.";
        Opening "opening" Both "Both modes are `Moving`, both locks are held.";
        Activated "activated" Both "The sender has said where its stream stands.";
        Opened "opened" Both "This side's lanes are open.";
        Confirming "confirming" Client "About to send the Confirm.";
        Confirmed "confirmed" Client "The Confirm has been sent.";
        ConfirmCame "confirm-came" Server "The Confirm has been received and not been read yet.";
    }
    Refusal {
        Declining "declining" Server "About to send a Decline.";
        Declined "declined" Server "The Decline has been sent.";
        DeclineCame "decline-came" Client "The Decline has been received and not been read yet.";
    }
    Transfer {
        Waking "waking" Both "The receiver is about to say that it is awake.";
        Awake "awake" Both "The peer may use the ring.";
        WindowGrown "window-grown" Both "A larger window of the ring has been declared; no byte lies there yet.";
        WindowShrunk "window-shrunk" Both "The window has become smaller: that of a trimmed ring, with the run that wakes the receiver, or one that makes room for other streams.";
        WritingSet "writing-set" Both "`writing` is set, no byte has been copied.";
        HalfCopied "half-copied" Both "Half of the bytes lie in the ring.";
        Copied "copied" Both "All bytes lie in the ring; they are not published.";
        Published "published" Both "The bytes are published; the receiver's ready bit is not set.";
        RunDeclared "run-declared" Both "Bytes are promised by TCP; none has been written.";
        RunHalfPaid "run-half-paid" Both "Half of the promised bytes have been written.";
        RunWritten "run-written" Both "All promised bytes have been written; the promise is not booked as kept.";
        TakenFromRing "taken-from-ring" Both "Bytes were copied out of the ring; `consumed` is not stored.";
        RingTold "ring-told" Both "`consumed` is stored.";
        TakenFromTcp "taken-from-tcp" Both "Bytes of a run were taken; `consumed` is not stored.";
        Napping "napping" Both "The sender is asked to wake the receiver; it may be writing.";
        Parking "parking" Both "`PARKED` is set; the sender may be writing.";
        Parked "parked" Both "About to sleep on TCP.";
        Trimming "trimming" Both "About to give a parked ring's pages back.";
        Trimmed "trimmed" Both "The pages are gone; `TRIMMED` is not set.";
        TrimTold "trim-told" Both "`TRIMMED` is set.";
    }
    Copying {
        BufferMade "buffer-made" Both "The sender has a buffer of its own, and no lane.";
        Buffered "buffered" Both "The bytes lie in the buffer; `writing` is set, the device has not been called.";
        DeviceWrote "device-wrote" Both "The device has moved the bytes into the ring; they are not published.";
    }
    Places {
        PlaceGiven "place-given" Both "Room in the peer's ring is reserved; `writing` is set.";
        PlaceFilled "place-filled" Both "The reserved room is filled; the bytes are not published.";
        Shown "shown" Both "The user looks at bytes in the ring.";
        ShownTaken "shown-taken" Both "The user has taken these bytes; `consumed` is stored.";
        HeldHere "held-here" Both "The user keeps bytes in the ring; the sender waits for their room.";
        HeldReleased "held-released" Both "The user has released these bytes; `consumed` is stored.";
    }
    Downgrade {
        EndingTx "ending-tx" Both "The sender is about to say that all further bytes go by TCP.";
        EndedTx "ended-tx" Both "The sender has said so; the socket still has the lane's options.";
        EndingRx "ending-rx" Both "`TCP_ONLY` is set; the sender may be writing.";
        EndedRx "ended-rx" Both "What is left in the ring is being read.";
    }
    Close {
        Closing "closing" Both "The program closes its last descriptor.";
        ClosingTold "closing-told" Both "The peer can see the close; the descriptor is still open.";
        Abandoning "abandoning" Both "The descriptor is closed; the DMBs are still held.";
        Detached "detached" Both "The peer's DMB is detached.";
        Released "released" Both "Our DMB is given back.";
    }
}
