//! What stands behind the `?` of an end: `memif:/run/x?role=server&id=3`. One reader for all ends.

use std::ops::RangeInclusive;

/// An end's options, of which all are known.
#[derive(Debug)]
pub(super) struct Options<'a> {
    kind: &'a str,
    given: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Options<'a> {
    /// Reads them: `a=1&b`, of those that this kind of end has.
    pub(super) fn read(
        kind: &'a str,
        text: &'a str,
        known: &[&str],
    ) -> Result<Options<'a>, String> {
        let mut given: Vec<(&str, Option<&str>)> = Vec::new();
        for part in text.split(['&', ',']).filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (part, None),
            };
            if !known.contains(&key) {
                let has = match known {
                    [] => "no options".to_owned(),
                    known => known.join(", "),
                };
                return Err(format!("there is no option {key:?}: {kind}: has {has}"));
            }
            if given.iter().any(|(earlier, _)| *earlier == key) {
                return Err(format!("{key} is said twice"));
            }
            given.push((key, value));
        }
        Ok(Options { kind, given })
    }

    fn find(&self, key: &str) -> Option<Option<&'a str>> {
        let found = self.given.iter().find(|(given, _)| *given == key);
        found.map(|(_, value)| *value)
    }

    /// One that is there or not.
    pub(super) fn flag(&self, key: &str) -> Result<bool, String> {
        match self.find(key) {
            Some(Some(_)) => Err(format!("{key} is there or not, and has no value")),
            found => Ok(found.is_some()),
        }
    }

    /// One with a value.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        match self.find(key) {
            None => Ok(None),
            Some(Some(value)) if !value.is_empty() => Ok(Some(value)),
            Some(_) => Err(format!("{key} wants a value: {}:…?{key}=…", self.kind)),
        }
    }

    /// One with a number.
    pub(super) fn number(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, String> {
        let Some(text) = self.text(key)? else {
            return Ok(None);
        };
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (low, high) = range.into_inner();
        number.map(Some).ok_or_else(|| match high {
            u64::MAX => format!("{key}={text}: a number, {low} or more"),
            high => format!("{key}={text}: a number, {low} to {high}"),
        })
    }

    /// Slots of a ring, as the power of two that they are.
    pub(super) fn slots(
        &self,
        key: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u8>, String> {
        let text = self.text(key)?;
        text.map(|text| slots(text, range).map_err(|why| format!("{key}={text}: {why}")))
            .transpose()
    }
}

/// Slots of a ring: a power of two; which one.
pub(super) fn slots(text: &str, range: RangeInclusive<u32>) -> Result<u8, String> {
    let fits = |slots: &u32| slots.is_power_of_two() && range.contains(slots);
    let log2 = text.parse().ok().filter(fits);
    // At most 31.
    let log2 = log2.and_then(|slots: u32| u8::try_from(slots.trailing_zeros()).ok());
    log2.ok_or_else(|| format!("a power of two, {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["loop", "id", "ring"];

    #[test]
    fn options_are_read_whatever_their_order() {
        for text in [
            "id=7&loop&ring=64",
            "ring=64,loop,id=7",
            "&loop&&id=7&ring=64",
        ] {
            let options = Options::read("x", text, &KNOWN).expect(text);
            assert_eq!(options.flag("loop"), Ok(true));
            assert_eq!(options.number("id", 0..=9), Ok(Some(7)));
            assert_eq!(options.slots("ring", 2..=64), Ok(Some(6)));
        }
        let none = Options::read("x", "", &KNOWN).expect("nothing");
        assert_eq!(none.flag("loop"), Ok(false));
        assert_eq!(none.number("id", 0..=9), Ok(None));
        assert_eq!(none.text("ring"), Ok(None));
    }

    #[test]
    fn what_is_not_known_is_answered_with_what_is() {
        let error = Options::read("x", "od=7", &KNOWN).expect_err("no such option");
        assert!(
            error.contains("loop, id, ring") && error.contains("\"od\""),
            "{error}"
        );
        let error = Options::read("x", "a", &[]).expect_err("none at all");
        assert!(error.contains("no options"), "{error}");
        assert!(Options::read("x", "id=1&id=2", &KNOWN).is_err());
    }

    #[test]
    fn values_are_what_they_must_be() {
        let read = |text| Options::read("x", text, &KNOWN).expect("known ones");
        assert!(read("loop=yes").flag("loop").is_err());
        for text in ["id", "id=", "id=-1", "id=10", "id=x"] {
            assert!(read(text).number("id", 0..=9).is_err(), "{text}");
        }
        for text in ["ring=3", "ring=0", "ring=128", "ring=x"] {
            assert!(read(text).slots("ring", 2..=64).is_err(), "{text}");
        }
    }
}
