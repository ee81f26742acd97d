//! The user of a client: its requests, and their results.

use super::{Asked, BLOCKS, DATA, Happening, UNTIL, World};
use crate::oracle::{NOTHING, Op, Violation};
use memlane_transport::engine::Direction;
use memlane_transport::engine::client::{AfterRestart, Event, Request};
use memlane_transport::engine::permits::Ticket;
use memlane_transport::error::{PathError, RequestError};
use memlane_transport::wire::SgDesc;

impl World {
    pub(super) fn user(&mut self) {
        let ends = self.now >= UNTIL;
        if ends && self.asked.is_empty() && self.last_reads < BLOCKS {
            // Whatever was acknowledged must be there in the end.
            if self.ask(self.last_reads, false) {
                self.last_reads += 1;
            }
        } else if !ends && self.asked.len() < self.most_asked {
            let block = usize::try_from(self.rng.below(BLOCKS as u64)).unwrap_or(0);
            let write = self.rng.chance(60);
            // A request that may be executed again by the next server must have its block for itself.
            let mut asked = self
                .asked
                .values()
                .map(|asked| self.history[asked.op].block);
            let alone = self.after_restart == AfterRestart::Fail || !asked.any(|at| at == block);
            if alone {
                self.ask(block, write);
            }
        }
        let next = self.now + self.rng.micros(100, if ends { 20_000 } else { 8_000 });
        self.at(next, Happening::User);
    }

    fn ask(&mut self, block: usize, write: bool) -> bool {
        let buffer = (0..).find(|buffer| self.asked.values().all(|asked| asked.buffer != *buffer));
        let buffer = buffer.unwrap_or(0);
        let into = SgDesc {
            addr: buffer,
            key: 1,
            len: DATA,
        };
        let request = Request {
            direction: if write {
                Direction::Write
            } else {
                Direction::Read
            },
            usr: [u8::try_from(block).unwrap_or(0); 5].into(),
            len: DATA,
            into: (!write).then_some(into),
            hint: u16::try_from(self.rng.below(8)).unwrap_or(0),
        };
        let reserved = self.reserve();
        let Ok(ticket) = self.client.submit_with(self.now, request, reserved) else {
            self.held.extend(reserved);
            return false;
        };
        self.report.reserved += u64::from(reserved.is_some());
        self.sequence += 1;
        let op = Op {
            block,
            write,
            value: if write { self.sequence } else { NOTHING },
            begin: self.sequence,
            end: None,
        };
        self.trace(&(ticket, op));
        let number = self.history.len();
        self.history.push(op);
        let asked = Asked {
            op: number,
            buffer,
            reserved: reserved.is_some(),
        };
        self.asked.insert(ticket, asked);
        true
    }

    /// Sometimes one that is held, sometimes another one; and sometimes those that are held are enough.
    fn reserve(&mut self) -> Option<u16> {
        if self.rng.chance(20)
            && let Some(permit) = self.held.pop()
        {
            self.client.permits().give_back(permit);
        }
        match self.rng.below(3) {
            0 => None,
            1 => self.client.permits().reserve(),
            _ => self.held.pop(),
        }
    }

    /// What becomes of a reserved permit whose request is over.
    fn keep(&mut self, permit: u16, answered: bool) {
        let holds = self.client.holds(permit);
        if answered && holds {
            let text = format!("permit {permit} was answered, and is not over");
            self.violation.get_or_insert(Violation::NotARegister(text));
        }
        match (holds, answered && self.rng.chance(70)) {
            (true, _) => self.client.permits().hand_over(),
            (false, true) => self.held.push(permit),
            (false, false) => self.client.permits().give_back(permit),
        }
    }

    pub(super) fn on_event(&mut self, event: Event) {
        match event {
            Event::PathDown {
                failed_over, why, ..
            } => {
                self.report.failed_over += failed_over as u64;
                self.report.silent += u64::from(why == PathError::Silent);
            }
            Event::ServerRestarted => self.report.restarts += 1,
            Event::Notice(_) => {}
            Event::Done { ticket, result } => self.on_done(ticket, result),
            Event::PathUp(_) => {}
        }
    }

    fn on_done(&mut self, ticket: Ticket, result: Result<(), RequestError>) {
        let asked = self.asked.remove(&ticket).expect("told of once");
        if asked.reserved {
            let answered = matches!(result, Ok(()) | Err(RequestError::Remote(_)));
            self.keep(ticket.permit, answered);
        }
        self.sequence += 1;
        let op = &mut self.history[asked.op];
        match result {
            Ok(()) => {
                op.end = Some(self.sequence);
                if !op.write {
                    op.value = self.buffers.get(&asked.buffer).copied().unwrap_or(u64::MAX);
                }
                self.report.done += 1;
            }
            // No backend here refuses, and a user who learns that a request was settled has learned before that it failed.
            Err(RequestError::Remote(errno)) => {
                let text = format!("{ticket:?} was answered errno {errno}");
                self.violation.get_or_insert(Violation::NotARegister(text));
            }
            Err(_) => {
                self.report.failed += 1;
                // The user asks for the last values until it has them.
                if self.now >= UNTIL && !op.write {
                    self.last_reads = self.last_reads.saturating_sub(1);
                }
            }
        }
    }
}
