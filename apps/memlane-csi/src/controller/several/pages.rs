//! Lists that go through the stores, in the order of their names.

use std::future::Future;

use tonic::Status;

use super::{Client, Several, of_store};
use crate::volume_id::{Kind, VolumeId};

/// Most entries of a list that are given at once, if the orchestrator has no wish.
const PAGE: i32 = 500;

/// What a store answered.
pub(super) struct Page<T> {
    /// Those of its entries that are listed.
    pub(super) entries: Vec<T>,
    /// The identifier of its last entry, listed or not.
    pub(super) last: String,
    /// Where its list goes on; empty: that was all.
    pub(super) next: String,
}

impl Several {
    /// Asks store after store, from the one that the token names, until there are `most` entries. Returns them, and the token
    /// of what follows.
    pub(super) async fn pages<T, F>(
        &self,
        kind: Kind,
        most: i32,
        token: &str,
        ask: impl Fn(Client, i32, String) -> F,
    ) -> Result<(Vec<T>, String), Status>
    where
        F: Future<Output = Result<Page<T>, Status>>,
    {
        let mut wanted = first_page(most)?;
        let mut found = Vec::new();
        let token = VolumeId::token(kind, token)?;
        for (name, client) in self.from(token.as_ref()) {
            let of_this = token.as_ref().filter(|token| token.store() == name);
            let mut begin = of_this.map(VolumeId::to_string).unwrap_or_default();
            loop {
                let said = ask(client.clone(), wanted, begin).await;
                let page = said.map_err(|why| of_store(name, why))?;
                wanted -= i32::try_from(page.entries.len()).unwrap_or(wanted);
                found.extend(page.entries);
                if wanted <= 0 {
                    return Ok((found, self.next(kind, page.last, page.next)));
                }
                if page.next.is_empty() {
                    break;
                }
                begin = page.next;
            }
        }
        Ok((found, String::new()))
    }

    /// The stores from the one that a token names on.
    fn from(&self, token: Option<&VolumeId>) -> impl Iterator<Item = (&str, &Client)> {
        let first = token.map_or("", VolumeId::store).to_owned();
        let all = self.stores.iter();
        all.map(|(name, client)| (name.as_str(), client))
            .filter(move |(name, _)| *name >= first.as_str())
    }

    /// The token of what follows a full page: the store's own, or the page's last entry if only other stores have more.
    fn next(&self, kind: Kind, last: String, own: String) -> String {
        if !own.is_empty() {
            return own;
        }
        let id = VolumeId::parse(kind, &last).ok().flatten();
        let has_next = id.is_some_and(|id| self.from(Some(&id)).nth(1).is_some());
        if has_next { last } else { String::new() }
    }
}

fn first_page(most: i32) -> Result<i32, Status> {
    match most {
        0 => Ok(PAGE),
        1.. => Ok(most.min(PAGE)),
        _ => Err(Status::invalid_argument("max_entries is negative")),
    }
}

/// Whether this identifier is one that the orchestrator knows, not that of a second copy.
pub(super) fn is_first_copy(text: &str) -> bool {
    let id = VolumeId::parse(Kind::Volume, text).ok().flatten();
    id.is_some_and(|id| id == id.whole())
}
