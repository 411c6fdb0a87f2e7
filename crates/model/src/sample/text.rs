//! From sampled ids to text, piece by piece: characters are given whole, and nothing is given
//! that may turn out to belong to a stop string.

use temper_checkpoint::tokenizer::Tokenizer;

/// What the ids of a vocabulary stand for.
pub trait Vocabulary: Send + Sync {
    /// The bytes of a token in the middle of a text; `None` for an id that has none.
    fn token_bytes(&self, id: u32) -> Option<&[u8]>;
    /// Whether the token is a mark and not text.
    fn is_control(&self, id: u32) -> bool;
    /// The ids that end a turn or a text.
    fn eos_ids(&self) -> &[u32];
}

impl Vocabulary for Tokenizer {
    fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        Tokenizer::token_bytes(self, id)
    }

    fn is_control(&self, id: u32) -> bool {
        Tokenizer::is_control(self, id)
    }

    fn eos_ids(&self) -> &[u32] {
        Tokenizer::eos_ids(self)
    }
}

/// The text of one request as it grows.
///
/// Bytes that are not UTF-8 become U+FFFD, one for each maximal invalid part, as soon as it is
/// certain that they are not the beginning of a character.
#[derive(Debug)]
pub struct TextStream {
    stops: Vec<Box<[u8]>>,
    skip_special: bool,
    /// Bytes that are not given out yet; all searches start here.
    held: Vec<u8>,
    stopped: Option<usize>,
}

impl TextStream {
    /// A stream that ends before the first of `stops`.
    pub fn new(stops: &[String], skip_special: bool) -> Self {
        TextStream {
            stops: stops
                .iter()
                .filter(|stop| !stop.is_empty())
                .map(|stop| stop.as_bytes().into())
                .collect(),
            skip_special,
            held: Vec::new(),
            stopped: None,
        }
    }

    /// Takes one sampled id and returns the text that is certain now.
    ///
    /// Where the id completes a stop string and `may_stop`, the text up to the stop string is
    /// returned and [`TextStream::stopped`] names it from then on; of several, the one that starts
    /// first counts, of these the longest. Without `may_stop` a completed stop string is text.
    pub fn push(&mut self, id: u32, vocabulary: &dyn Vocabulary, may_stop: bool) -> String {
        if self.stopped.is_some() || (self.skip_special && vocabulary.is_control(id)) {
            return String::new();
        }
        let n_before = self.held.len();
        self.held
            .extend_from_slice(vocabulary.token_bytes(id).unwrap_or_default());
        if may_stop && let Some((start, index)) = self.find_stop(n_before) {
            self.held.truncate(start);
            self.stopped = Some(index);
            return self.finish();
        }
        let n_certain = self.held.len() - self.n_possible_stop();
        self.give(n_certain)
    }

    /// Which stop string ended the text, by its place in the request.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// The text that was held back, once no further id comes.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }

    /// The first stop string that ends behind byte `n_before`: where it starts, and which it is.
    fn find_stop(&self, n_before: usize) -> Option<(usize, usize)> {
        let mut found: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.iter().enumerate() {
            let from = (n_before + 1).saturating_sub(stop.len());
            let start = self.held[from..]
                .windows(stop.len())
                .position(|window| window == &stop[..])
                .map(|at| from + at);
            let better = |start: usize| match found {
                None => true,
                Some((best, at)) => {
                    start < best || (start == best && stop.len() > self.stops[at].len())
                }
            };
            if let Some(start) = start.filter(|&start| better(start)) {
                found = Some((start, index));
            }
        }
        found
    }

    /// Bytes at the end that are the beginning of a stop string.
    fn n_possible_stop(&self) -> usize {
        self.stops
            .iter()
            .filter_map(|stop| {
                let most = (stop.len() - 1).min(self.held.len());
                (1..=most)
                    .rev()
                    .find(|&n| self.held[self.held.len() - n..] == stop[..n])
            })
            .max()
            .unwrap_or(0)
    }

    /// Gives out up to `n` bytes, but not a part of a character.
    fn give(&mut self, n: usize) -> String {
        let mut text = String::new();
        let mut given = 0;
        for chunk in self.held[..n].utf8_chunks() {
            text.push_str(chunk.valid());
            given += chunk.valid().len();
            if chunk.invalid().is_empty() {
                continue;
            }
            if given + chunk.invalid().len() == n && may_be_completed(chunk.invalid()) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            given += chunk.invalid().len();
        }
        self.held.drain(..given);
        text
    }
}

/// Whether more bytes could make a character of these.
fn may_be_completed(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A vocabulary of the 256 bytes; 256 is a control token.
    pub struct ByteVocabulary(pub Vec<[u8; 1]>, pub Vec<u32>);

    impl ByteVocabulary {
        pub fn new(eos: &[u32]) -> Self {
            ByteVocabulary((0..=255).map(|byte| [byte]).collect(), eos.to_vec())
        }
    }

    impl Vocabulary for ByteVocabulary {
        fn token_bytes(&self, id: u32) -> Option<&[u8]> {
            self.0.get(id as usize).map(|bytes| &bytes[..])
        }

        fn is_control(&self, id: u32) -> bool {
            id >= 256
        }

        fn eos_ids(&self) -> &[u32] {
            &self.1
        }
    }

    /// A vocabulary of the given strings.
    struct Words(Vec<&'static str>);

    impl Vocabulary for Words {
        fn token_bytes(&self, id: u32) -> Option<&[u8]> {
            self.0.get(id as usize).map(|word| word.as_bytes())
        }

        fn is_control(&self, _: u32) -> bool {
            false
        }

        fn eos_ids(&self) -> &[u32] {
            &[]
        }
    }

    fn run(words: &[&'static str], stops: &[&str]) -> (Vec<String>, Option<usize>, usize) {
        let vocabulary = Words(words.to_vec());
        let stops: Vec<String> = stops.iter().map(|&s| s.into()).collect();
        let mut stream = TextStream::new(&stops, true);
        let mut pieces = Vec::new();
        for id in 0..words.len() {
            pieces.push(stream.push(id as u32, &vocabulary, true));
            if stream.stopped().is_some() {
                return (pieces, stream.stopped(), id + 1);
            }
        }
        pieces.push(stream.finish());
        (pieces, None, words.len())
    }

    #[test]
    fn text_ends_before_the_stop_string_and_ids_after_the_token_that_completes_it() {
        let (pieces, stopped, n_ids) = run(&["a b", " ST", "OP", "x y", "z"], &["STOPx"]);
        assert_eq!(pieces, ["a b", " ", "", ""]);
        assert_eq!((stopped, n_ids), (Some(0), 4));
    }

    #[test]
    fn what_was_held_back_is_given_once_it_is_no_stop_string() {
        let (pieces, stopped, _) = run(&["aST", "OPAST", "Oy", "ST"], &["STOPx", "STOy!"]);
        assert_eq!(pieces, ["a", "STOPA", "", "STOy", "ST"]);
        assert_eq!(stopped, None);
        let (pieces, ..) = run(&["a", "ab", "aab", "c"], &["aaab"]);
        assert_eq!(pieces.concat(), "aabaabc");
    }

    #[test]
    fn the_stop_string_that_starts_first_counts_and_of_these_the_longest() {
        let (pieces, stopped, _) = run(&["x", "1234"], &["34", "234", "23"]);
        assert_eq!((pieces.concat(), stopped), ("x1".to_owned(), Some(1)));
    }

    #[test]
    fn characters_are_given_whole() {
        let vocabulary = ByteVocabulary::new(&[]);
        let mut stream = TextStream::new(&[], true);
        let mut pieces = Vec::new();
        for byte in "é\u{1F980}".bytes() {
            pieces.push(stream.push(u32::from(byte), &vocabulary, true));
        }
        assert_eq!(pieces, ["", "é", "", "", "", "\u{1F980}"]);
        // A broken character, then a cut one.
        for (bytes, given, at_end) in [
            (&[0xe2u8, 0x41][..], "\u{fffd}A", ""),
            (&[0xf0, 0x9f][..], "", "\u{fffd}"),
            (&[0xff, 0xff][..], "\u{fffd}\u{fffd}", ""),
        ] {
            let mut stream = TextStream::new(&[], true);
            let text: String = bytes
                .iter()
                .map(|&byte| stream.push(u32::from(byte), &vocabulary, true))
                .collect();
            assert_eq!((text.as_str(), stream.finish().as_str()), (given, at_end));
        }
    }

    #[test]
    fn control_tokens_are_no_text() {
        let vocabulary = ByteVocabulary::new(&[]);
        let mut stream = TextStream::new(&["ab".into()], true);
        assert_eq!(stream.push(97, &vocabulary, true), "");
        assert_eq!(stream.push(256, &vocabulary, true), "");
        assert_eq!(stream.push(98, &vocabulary, true), "");
        assert_eq!(stream.stopped(), Some(0));
    }

    #[test]
    fn a_stop_string_too_early_is_text_and_does_not_count_later() {
        let vocabulary = ByteVocabulary::new(&[]);
        let mut stream = TextStream::new(&["ab".into()], true);
        let mut text = stream.push(97, &vocabulary, false);
        text += &stream.push(98, &vocabulary, false);
        text += &stream.push(99, &vocabulary, true);
        assert_eq!((text.as_str(), stream.stopped()), ("abc", None));
    }

    /// However the text is cut into tokens, the result is that of a search in the whole text.
    #[test]
    fn pieces_do_not_change_the_result() {
        let mut state = 3u64;
        let mut random = move |n: u64| {
            state = crate::random::mix(state);
            state % n
        };
        let vocabulary = ByteVocabulary::new(&[]);
        for _ in 0..2000 {
            let text: Vec<u8> = (0..random(30)).map(|_| b'a' + random(2) as u8).collect();
            let stop: String = (0..1 + random(4))
                .map(|_| (b'a' + random(2) as u8) as char)
                .collect();
            let whole = String::from_utf8(text.clone()).unwrap();
            let expected = whole.find(&stop).map_or(whole.as_str(), |at| &whole[..at]);
            let mut stream = TextStream::new(&[stop], true);
            let mut got = String::new();
            for byte in text {
                got += &stream.push(u32::from(byte), &vocabulary, true);
            }
            got += &stream.finish();
            assert_eq!(got, expected);
        }
    }
}
