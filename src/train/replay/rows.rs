//! The rows of texts and of what departs from them, by the [`Target`]: a group's texts are computed once, and every tick's rows in one
//! pass.

use std::collections::HashMap;

use rayon::prelude::*;

use super::heads::BatchedHeads;
use super::text::check_greedy;
use super::{Model, Place, Text, bests};
use crate::error::Result;
use crate::sampling::Candidate;
use crate::train::from_candle;
use crate::train::target::{Forest, KvCache, NewTokens, Seen, SequenceSlice, Target, values};

/// Rows of texts in a pass, about.
const TEXT_ROWS: usize = 1024;
/// Rows whose logits are there at a time.
const LOGIT_ROWS: usize = 256;

/// A target that texts are replayed on.
#[derive(Debug)]
pub struct TargetRows<'a> {
    target: &'a Target,
    valid_tokens: usize,
    texts: Vec<Open>,
    /// Memory of earlier groups.
    spare: Vec<KvCache>,
    /// Whether texts were seen to be greedy ones.
    checked: bool,
}

/// A text of the group.
#[derive(Debug)]
struct Open {
    cache: KvCache,
    prompt: usize,
    /// `[rows, hidden]`.
    hidden: Vec<f32>,
    /// What heads make of them, where they read more; `[rows, hidden]`.
    of_heads: Option<Vec<f32>>,
}

impl<'a> TargetRows<'a> {
    /// For texts of this model; ids from `valid_tokens` on are never chosen.
    pub fn new(target: &'a Target, valid_tokens: u32) -> Self {
        Self { target, valid_tokens: valid_tokens as usize, texts: Vec::new(), spare: Vec::new(), checked: false }
    }

    /// Computes texts together.
    fn compute(&mut self, texts: &[&Text], heads: Option<&BatchedHeads<'_>>) -> Result<()> {
        let hidden_size = self.target.config().hidden_size;
        let whole: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| [&text.answer.prompt[..], &text.answer.tokens[..text.answer.tokens.len() - 1]].concat())
            .collect();
        let mut caches: Vec<KvCache> = texts
            .iter()
            .map(|_| {
                self.spare.pop().map_or_else(
                    || self.target.new_cache(),
                    |mut cache| {
                        cache.truncate(0);
                        cache
                    },
                )
            })
            .collect();
        let slices = caches.iter_mut().zip(&whole);
        let mut batch: Vec<SequenceSlice<'_>> =
            slices.map(|(cache, tokens)| SequenceSlice { cache, new: NewTokens::Text(tokens) }).collect();
        let layers = heads.map_or_else(Vec::new, BatchedHeads::layers);
        let found = self.target.forward(&mut batch, &layers)?;
        let mut end = 0;
        for ((text, whole), cache) in texts.iter().zip(&whole).zip(caches) {
            let prompt = text.answer.prompt.len();
            let rows = (end + prompt - 1) * hidden_size..(end + whole.len()) * hidden_size;
            end += whole.len();
            let hidden = found.hidden[rows.clone()].to_vec();
            let read = |heads: &BatchedHeads<'_>| {
                let layers: Vec<Vec<f32>> = found.layers.iter().map(|layer| layer[rows.clone()].to_vec()).collect();
                let seen: Vec<Seen<'_>> =
                    (prompt - 1..whole.len()).map(|position| Seen { cache: &cache, position }).collect();
                heads.rows(&hidden, &layers, &seen)
            };
            let of_heads = heads.filter(|heads| heads.shape().reads_more()).map(read).transpose()?;
            self.texts.push(Open { cache, prompt, hidden, of_heads });
        }
        Ok(())
    }

    /// Checks that the first tokens of texts are those that the model finds most probable.
    fn check(&mut self, texts: &[&Text]) -> Result<()> {
        let each = (LOGIT_ROWS / texts.len().max(1)).max(1);
        let (mut places, mut tokens) = (Vec::new(), Vec::new());
        for (number, text) in texts.iter().enumerate() {
            let firsts = text.answer.tokens.iter().take(each);
            tokens.extend(firsts.clone());
            places.extend((0..firsts.len()).map(|row| Place { text: number, row, tail: Vec::new() }));
        }
        let bests = self.bests(&places)?;
        let found =
            bests.iter().zip(&tokens).filter(|(bests, token)| bests.first().map(|best| best.token) == Some(**token));
        check_greedy(found.count(), tokens.len())
    }

    /// The hidden rows of places, in their order.
    fn hidden(&mut self, places: &[Place]) -> Result<Vec<f32>> {
        let hidden_size = self.target.config().hidden_size;
        let mut forests: Vec<Forest> = vec![Forest::default(); self.texts.len()];
        let mut planted: HashMap<(usize, usize, &[u32]), usize> = HashMap::new();
        for place in places {
            let (forest, start) = (&mut forests[place.text], self.texts[place.text].prompt + place.row);
            let mut parent = None;
            for end in 1..=place.tail.len() {
                let token = place.tail[end - 1];
                let row = planted.entry((place.text, place.row, &place.tail[..end])).or_insert_with(|| match parent {
                    None => forest.plant(start, token),
                    Some(parent) => forest.grow(parent, token),
                });
                parent = Some(*row);
            }
        }
        let rows: Vec<usize> = forests.iter().map(Forest::len).collect();
        let firsts: Vec<usize> = rows.iter().scan(0, |end, rows| Some(std::mem::replace(end, *end + rows))).collect();
        let texts = self.texts.iter_mut().zip(&forests).filter(|(_, forest)| !forest.is_empty());
        let mut batch: Vec<SequenceSlice<'_>> = texts
            .map(|(text, forest)| SequenceSlice { cache: &mut text.cache, new: NewTokens::Forest(forest) })
            .collect();
        let found = if batch.is_empty() { Vec::new() } else { self.target.forward(&mut batch, &[])?.hidden };
        let mut hidden = Vec::with_capacity(places.len() * hidden_size);
        for place in places {
            let row = match planted.get(&(place.text, place.row, &place.tail[..])) {
                Some(row) => &found[(firsts[place.text] + row) * hidden_size..],
                None => &self.texts[place.text].hidden[place.row * hidden_size..],
            };
            hidden.extend_from_slice(&row[..hidden_size]);
        }
        Ok(hidden)
    }
}

impl Model for TargetRows<'_> {
    fn open(&mut self, texts: &[&Text], heads: Option<&BatchedHeads<'_>>) -> Result<Vec<Vec<f32>>> {
        self.spare.extend(self.texts.drain(..).map(|text| text.cache));
        let (mut first, mut rows) = (0, 0);
        for (at, text) in texts.iter().enumerate() {
            rows += text.answer.prompt.len() + text.answer.tokens.len();
            if rows >= TEXT_ROWS || at + 1 == texts.len() {
                self.compute(&texts[first..=at], heads)?;
                (first, rows) = (at + 1, 0);
            }
        }
        if !self.checked {
            self.check(texts)?;
            self.checked = true;
        }
        Ok(self.texts.iter().map(|text| text.of_heads.as_ref().unwrap_or(&text.hidden).clone()).collect())
    }

    fn bests(&mut self, places: &[Place]) -> Result<Vec<Vec<Candidate>>> {
        let hidden = self.hidden(places)?;
        let (hidden_size, vocab_size) = (self.target.config().hidden_size, self.target.config().vocab_size);
        let mut found = Vec::with_capacity(places.len());
        for rows in hidden.chunks(LOGIT_ROWS * hidden_size) {
            let logits = self.target.logits(rows)?;
            let best = |row: &[f32]| bests(&row[..self.valid_tokens]);
            let chunk: Vec<Vec<Candidate>> =
                values(&logits, |logits| logits.par_chunks_exact(vocab_size).map(best).collect())
                    .map_err(from_candle)?;
            found.extend(chunk);
        }
        Ok(found)
    }
}
