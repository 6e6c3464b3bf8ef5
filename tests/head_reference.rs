//! What draft heads compute: that heads made from a model predict what the model does, and every formula written out once more.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::Backend as _;
use draftree::backend::cpu::CpuBackend;
use draftree::backend::cpu::heads::{CpuHeads, DraftScene};
use draftree::error::{Error, ErrorCode};
use draftree::model::heads::HeadForm;
use draftree::model::{ByteSource, HeadFile, Matrix, Vector};
use draftree::sampling::SamplingParams;
use draftree::speculate::grow::HeadCandidates;
use draftree::speculate::heads::{BEAM, Ranking, Scoring, TOP_K, slots};
use draftree::speculate::tree::Tree;
use harness::heads::{File, Heads};
use harness::random::Random;
use harness::{heads, synthetic};
use pollster::block_on;

/// A model, heads made from it, and the hidden row of the last token of a text.
struct Setting {
    backend: CpuBackend,
    heads: CpuHeads,
    hidden: Vec<f32>,
    /// Logits of the model for the token after the text.
    logits: Vec<f32>,
    start: usize,
}

impl Setting {
    fn new(model: &impl ByteSource, heads: &impl ByteSource) -> Self {
        let mut backend = harness::cpu(model);
        let vocab = backend.config().vocab_size;
        let text = Random::new(5).tokens(12, vocab);
        let (last, context) = text.split_last().unwrap();
        harness::prefill(&mut backend, 0, context);
        let hidden = backend.hidden(context.len(), &Tree::chain(&[*last]).unwrap()).swap_remove(0);
        let logits = harness::logits_of(&mut backend, context.len(), *last);
        Self { heads: heads::cpu(heads, model), hidden, logits, start: text.len(), backend }
    }

    /// What the heads say of the children of the node that the tokens of `path` lead to, root and node included, from the hidden row
    /// on; none below the depth that they draft.
    fn children(&self, sampling: &SamplingParams, path: &[u32]) -> Option<Ranking> {
        let (heads, shape, target) = (&self.heads, self.heads.shape(), self.backend.target());
        let (depth, token) = (path.len() - 1, path[path.len() - 1]);
        if depth >= shape.depths {
            return None;
        }
        let row = match shape.form {
            HeadForm::Parallel => heads.parallel_rows(&self.hidden).unwrap().swap_remove(depth),
            HeadForm::Recurrent => {
                let levels = path.iter().enumerate();
                levels.fold(self.hidden.clone(), |state, (level, &token)| {
                    heads.next_state(target, level, &state, token).unwrap()
                })
            }
        };
        let logits = heads.logits(target, depth, &row).unwrap();
        let scoring = Scoring {
            sampling,
            position: (self.start + path.len()) as u32,
            token_map: shape.token_map.as_deref(),
            valid_tokens: self.backend.config().vocab_size as u32,
            shares_noise: true,
        };
        let ranking = scoring.rank(&logits[..shape.draft_vocab]);
        let corrections: Vec<f32> =
            ranking.candidates.iter().map(|candidate| heads.correction(token, candidate.draft).unwrap()).collect();
        Some(scoring.correct(&ranking, &corrections))
    }

    /// The candidates for a whole tree.
    fn candidates(&self, sampling: &SamplingParams, root: u32) -> HeadCandidates {
        let valid_tokens = self.backend.config().vocab_size as u32;
        let scene = DraftScene { sampling, context_length: self.start, valid_tokens, shares_noise: true };
        self.heads.draft(self.backend.target(), &self.hidden, scene).candidates(root).unwrap()
    }

    fn greedy(&self, path: &[u32]) -> Ranking {
        self.children(&SamplingParams::default(), path).expect("a depth that is drafted")
    }
}

fn every_kind() -> Vec<Heads> {
    let mut kinds = Vec::new();
    for form in [HeadForm::Parallel, HeadForm::Recurrent] {
        for own in [false, true] {
            for draft_vocab in [None, Some(200)] {
                for rank in [None, Some(5)] {
                    kinds.push(Heads { form, own, draft_vocab, rank, layers: 2, ..Heads::default() });
                }
            }
        }
    }
    kinds
}

#[test]
fn exact_heads_predict_at_every_depth_what_the_model_predicts_next() {
    for model in [synthetic::Model::RAGGED, synthetic::Model { tied: false, ..synthetic::Model::RAGGED }] {
        let model = model.source();
        for kind in every_kind() {
            let setting = Setting::new(&model, &heads::from_model(&model, kind));
            let shape = setting.heads.shape();
            assert_eq!((shape.depths, shape.warning.as_ref()), (3, None));
            let best = (0..shape.draft_vocab)
                .map(|draft| shape.token(draft))
                .max_by(|&a, &b| setting.logits[a as usize].total_cmp(&setting.logits[b as usize]))
                .unwrap();
            for path in [&[7][..], &[7, 300], &[7, 8, 9]] {
                let ranking = setting.greedy(path);
                assert_eq!(ranking.candidates.len(), TOP_K, "{kind:?}");
                assert_eq!(ranking.candidates[0].token, best, "{kind:?}, {path:?}");
                for candidate in &ranking.candidates {
                    let logit = setting.logits[candidate.token as usize];
                    assert_eq!(candidate.score, logit, "{kind:?}: the score is the model's own logit");
                }
            }
            assert_eq!(setting.children(&SamplingParams::default(), &[1, 2, 3, 4]), None, "below the last depth");
        }
    }
}

#[test]
fn exact_heads_draw_what_the_model_will_draw_at_that_position() {
    let model = synthetic::Model::RAGGED.source();
    let setting = Setting::new(&model, &heads::from_model(&model, Heads::default()));
    for seed in 0..40 {
        let sampling = SamplingParams { temperature: 0.9, seed, ..Default::default() };
        let mut processed = setting.logits.clone();
        draftree::sampling::process_logits(&mut processed, &[], &sampling);
        for depth in 1..=3 {
            let position = (setting.start + depth) as u32;
            let drawn = draftree::sampling::sample(&processed, position, &sampling);
            let ranking = setting.children(&sampling, &vec![7; depth]).unwrap();
            assert_eq!(ranking.candidates[0].token, drawn, "seed {seed}, depth {depth}");
        }
    }
}

#[test]
fn noisy_heads_differ_from_the_model_and_by_depth_or_path() {
    let model = synthetic::Model::RAGGED.source();
    for kind in every_kind() {
        let setting = Setting::new(&model, &heads::from_model(&model, Heads { noise: 0.5, ..kind }));
        let (first, second) = (setting.greedy(&[7]), setting.greedy(&[7, 7]));
        let own_logit = setting.logits[first.candidates[0].token as usize];
        assert_ne!(first.candidates[0].score, own_logit, "{kind:?}");
        assert_ne!(first, second, "{kind:?}");
        let depends_on_path = kind.rank.is_some() || kind.form == HeadForm::Recurrent;
        assert_eq!(setting.greedy(&[7, 8]) != second, depends_on_path, "{kind:?}");
        let again = Setting::new(&model, &heads::from_model(&model, Heads { noise: 0.5, ..kind }));
        assert_eq!(again.greedy(&[7]), first, "the same seed gives the same heads");
    }
}

/// Follows every link from the root on and compares each list with the heads asked for its path alone. Returns how many nodes
/// have lists, by depth.
fn check_paths(setting: &Setting, sampling: &SamplingParams, root: u32) -> Vec<usize> {
    let shape = setting.heads.shape();
    let found = setting.candidates(sampling, root);
    let by_depth = found.by_depth;
    assert_eq!(found.slots.len(), slots(shape));
    let mut counts = Vec::new();
    let mut level = vec![(vec![root], 0)];
    while !level.is_empty() {
        counts.push(level.len());
        let mut next = Vec::new();
        for (path, slot) in level {
            let expected = setting.children(sampling, &path).expect("no list lies deeper than the heads reach");
            assert_eq!(found.slots[slot].len(), expected.candidates.len());
            let listed = found.slots[slot].iter().zip(expected.candidates.iter().zip(expected.log_probabilities()));
            for (found, (expected, log_probability)) in listed {
                assert_eq!((found.token, found.log_probability), (expected.token, log_probability), "{path:?}");
                let below = if by_depth { (slot + 1 < shape.depths).then_some(slot + 1) } else { found.next };
                next.extend(below.map(|slot| ([&path[..], &[found.token]].concat(), slot)));
            }
        }
        level = next;
    }
    counts
}

#[test]
fn candidates_of_a_tree_are_those_of_every_path_alone() {
    let model = synthetic::Model::RAGGED.source();
    let sampled = SamplingParams { temperature: 0.7, seed: 9, ..Default::default() };
    for kind in every_kind() {
        let setting = Setting::new(&model, &heads::from_model(&model, Heads { noise: 0.5, ..kind }));
        for sampling in [&SamplingParams::default(), &sampled] {
            let counts = check_paths(&setting, sampling, 7);
            let expected = match kind.form {
                HeadForm::Parallel => [1, TOP_K, TOP_K * TOP_K],
                HeadForm::Recurrent => [1, BEAM, BEAM],
            };
            assert_eq!(counts, expected, "{kind:?}");
        }
    }
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn product(weights: &[f32], x: &[f32]) -> Vec<f32> {
    weights.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn assert_close(found: &[f32], expected: &[f32], place: &str) {
    assert_eq!(found.len(), expected.len(), "{place}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= 1e-4 * (1.0 + expected.abs()),
            "{place}: {i}: {found}, expected {expected}"
        );
    }
}

/// The float32 values of a tensor of the file.
fn values(file: &File, name: &str) -> Vec<f32> {
    let bytes = &file.tensors[name].data;
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn step(x: &[f32], product: &[f32], bias: &[f32]) -> Vec<f32> {
    (0..x.len()).map(|i| x[i] + silu(product[i] + bias[i])).collect()
}

#[test]
fn every_stored_layer_of_every_head_is_computed() {
    let model = synthetic::Model::RAGGED.source();
    let file = heads::file(&model, Heads { layers: 3, noise: 1.0, ..Heads::default() });
    let setting = Setting::new(&model, &file.source());
    let rows = setting.heads.parallel_rows(&setting.hidden).unwrap();
    for (head, row) in rows.iter().enumerate() {
        let mut expected = setting.hidden.clone();
        for layer in 0..3 {
            let weight = values(&file, &format!("blocks.{head}.{layer}.weight"));
            let bias = values(&file, &format!("blocks.{head}.{layer}.bias"));
            expected = step(&expected, &product(&weight, &expected), &bias);
        }
        assert_close(row, &expected, &format!("head {head}"));
    }
}

#[test]
fn what_other_layers_say_is_fused_with_the_hidden_row() {
    let model = synthetic::Model::RAGGED.source();
    let mut backend = harness::cpu(&model);
    let text = Random::new(5).tokens(12, backend.config().vocab_size);
    harness::prefill(&mut backend, 0, &text);
    let root = Tree::chain(&text[11..]).unwrap();
    let hidden = backend.hidden(11, &root).swap_remove(0);
    let row = |file: &File| {
        let heads = heads::cpu(&file.source(), &model);
        backend.head_rows(&heads, 11, &root).unwrap().swap_remove(0)
    };
    let (_, weights) = harness::model_files::load(&model).unwrap();
    let gain = &weights.vectors[&Vector::FinalNorm];
    // The hidden row is the output of the last layer, normed with a gain.
    let last: Vec<f32> = hidden.iter().zip(gain).map(|(x, gain)| x / gain).collect();
    for form in [HeadForm::Parallel, HeadForm::Recurrent] {
        let kind = Heads { form, taps: &[0, 1], ..Heads::default() };
        harness::assert_same_bits(&row(&heads::file(&model, kind)), &hidden, "fusion by zeros changes nothing");

        let file = heads::file(&model, Heads { noise: 0.7, taps: &[1], ..kind });
        let product = |file: &File, taps: &[f32]| {
            let inputs = [&hidden, taps].concat();
            step(&hidden, &product(&values(file, "fusion.weight"), &inputs), &values(file, "fusion.bias"))
        };
        assert_close(&row(&file), &product(&file, &last), "the last layer");

        let file = heads::file(&model, Heads { noise: 0.7, ..kind });
        let first: Vec<f32> = (0..hidden.len()).map(|i| (i % 7) as f32 - 3.0).collect();
        let taps = [&first[..], &last].concat();
        let reader = heads::cpu(&file.source(), &model);
        assert_close(&reader.fuse(&hidden, &taps).unwrap(), &product(&file, &taps), "both layers, in their order");
        assert_ne!(row(&file), reader.fuse(&hidden, &taps).unwrap(), "the first layer says something else");
    }
}

#[test]
fn a_row_looks_back_at_its_own_context_and_no_further() {
    let model = synthetic::Model::WIDE.source();
    let mut backend = harness::cpu(&model);
    let text = Random::new(5).tokens(40, backend.config().vocab_size);
    harness::prefill(&mut backend, 0, &text[..30]);
    let tree = Tree::new(&text[30..35], &[0, 0, 1, 0, 2]).unwrap();
    for layer in [0, 1] {
        let kind = Heads { context: Some(layer), ..Heads::default() };
        let exact = heads::cpu(&heads::from_model(&model, kind), &model);
        let rows = backend.head_rows(&exact, 30, &tree).unwrap();
        for (row, hidden) in rows.iter().zip(backend.hidden(30, &tree)) {
            harness::assert_same_bits(row, &hidden, "a block of zeros changes nothing");
        }
        let noisy = heads::cpu(&heads::from_model(&model, Heads { noise: 0.7, ..kind }), &model);
        let rows = backend.head_rows(&noisy, 30, &tree).unwrap();
        assert_ne!(rows[0], backend.hidden(30, &tree)[0]);
        for (node, row) in rows.iter().enumerate() {
            // The same text without what stands beside or behind the node.
            let path: Vec<u32> = tree.path(node).into_iter().map(|node| tree.tokens()[node]).collect();
            let alone = backend.head_rows(&noisy, 30, &Tree::chain(&path).unwrap()).unwrap();
            harness::assert_same_bits(row, alone.last().unwrap(), &format!("node {node}"));
        }
        let mut other = harness::cpu(&model);
        let changed = [&[text[0] ^ 1], &text[1..30]].concat();
        harness::prefill(&mut other, 0, &changed);
        assert_ne!(rows[0], other.head_rows(&noisy, 30, &tree).unwrap()[0], "the first position is seen");
    }
}

#[test]
fn looking_back_is_attention_by_queries_of_the_normed_row() {
    let model = synthetic::Model::WIDE.source();
    let config = harness::open(&model).config;
    let file = heads::file(&model, Heads { noise: 0.7, context: Some(1), ..Heads::default() });
    let reader = heads::cpu(&file.source(), &model);
    let mut random = Random::new(4);
    let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| random.unit()).collect() };
    let (row, dim, kv) = (numbers(config.hidden_size), config.head_dim, config.kv_size());
    let (keys, values): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (0..9).map(|_| (numbers(kv), numbers(kv))).unzip();
    let mean = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
    let normed: Vec<f32> = row.iter().map(|x| x / (mean + config.rms_norm_eps).sqrt()).collect();
    let mut queries = product(&self::values(&file, "context.query.weight"), &normed);
    for (pair, query) in queries.chunks_exact_mut(2).enumerate() {
        let angle = 8.0 * config.inverse_frequencies()[pair % (dim / 2)];
        let (x, y) = (query[0], query[1]);
        query.copy_from_slice(&[x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()]);
    }
    let group = config.num_attention_heads / config.num_key_value_heads;
    let mut inputs = row.clone();
    for (head, query) in queries.chunks_exact(dim).enumerate() {
        let kv = head / group * dim..(head / group + 1) * dim;
        let scores = keys.iter().map(|key| query.iter().zip(&key[kv.clone()]).map(|(q, k)| q * k).sum::<f32>());
        let weights: Vec<f32> = scores.map(|score| (score / (dim as f32).sqrt()).exp()).collect();
        let total: f32 = weights.iter().sum();
        inputs.extend(
            kv.map(|d| weights.iter().zip(&values).map(|(weight, value)| weight * value[d]).sum::<f32>() / total),
        );
    }
    let expected =
        step(&row, &product(&self::values(&file, "context.weight"), &inputs), &self::values(&file, "context.bias"));
    let [keys, values] = [&keys, &values].map(|rows| rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert_close(&reader.look_back(&config, row, &keys, &values).unwrap(), &expected, "a row that looked back");
}

#[test]
fn the_recurrent_state_takes_up_every_token_of_the_path_the_root_included() {
    let model = synthetic::Model { tied: false, ..synthetic::Model::RAGGED }.source();
    let kind = Heads { form: HeadForm::Recurrent, noise: 1.0, ..Heads::default() };
    let one = heads::file(&model, kind);
    let mut each = one.clone();
    each.metadata.remove("form");
    for level in 1..3 {
        let other = heads::file(&model, Heads { seed: 50 + level, ..kind });
        for end in ["weight", "bias"] {
            each = each.with(&format!("blocks.{level}.0.{end}"), other.tensors[&format!("blocks.0.0.{end}")].clone());
        }
    }
    let (_, weights) = harness::model_files::load(&model).unwrap();
    let (embedding, lm_head) = (weights.unpack(Matrix::Embedding), weights.unpack(Matrix::LmHead));
    for (file, shared) in [(one, true), (each, false)] {
        let setting = Setting::new(&model, &file.source());
        assert_eq!((setting.heads.shape().form, setting.heads.shape().depths), (HeadForm::Recurrent, 3));
        let mut state = setting.hidden.clone();
        let path = [3, 400, 8];
        for (level, &token) in path.iter().enumerate() {
            let block = if shared { 0 } else { level };
            let input = [&state[..], &embedding[token as usize * state.len()..][..state.len()]].concat();
            let weight = values(&file, &format!("blocks.{block}.0.weight"));
            let bias = values(&file, &format!("blocks.{block}.0.bias"));
            state = step(&state, &product(&weight, &input), &bias);
            let logits = product(&lm_head, &state);
            let ranking = setting.greedy(&path[..=level]);
            let found: Vec<f32> = ranking.candidates.iter().map(|candidate| candidate.score).collect();
            let expected: Vec<f32> =
                ranking.candidates.iter().map(|candidate| logits[candidate.token as usize]).collect();
            assert_close(&found, &expected, &format!("level {level}"));
            let best = logits.iter().copied().fold(f32::MIN, f32::max);
            assert_close(&found[..1], &[best], &format!("level {level}"));
        }
    }
}

#[test]
fn the_correction_is_the_product_of_the_previous_tokens_row_and_the_candidates() {
    let model = synthetic::Model::RAGGED.source();
    let kind = Heads { noise: 0.7, rank: Some(6), draft_vocab: Some(300), ..Heads::default() };
    let file = heads::file(&model, kind);
    let plain = file.clone().without("previous.weight").without("correction.weight");
    let (with, without) = (Setting::new(&model, &file.source()), Setting::new(&model, &plain.source()));
    let (previous, correction) = (values(&file, "previous.weight"), values(&file, "correction.weight"));
    let sampling = SamplingParams { temperature: 0.5, seed: 3, ..Default::default() };
    for path in [&[9][..], &[9, 77]] {
        let (with, without) = (with.children(&sampling, path).unwrap(), without.children(&sampling, path).unwrap());
        let last = *path.last().unwrap() as usize;
        for candidate in &with.candidates {
            let before = without.candidates.iter().find(|other| other.draft == candidate.draft).unwrap();
            let dot: f32 = (0..6).map(|i| previous[last * 6 + i] * correction[candidate.draft * 6 + i]).sum();
            assert_close(&[candidate.score], &[before.score + dot / 0.5], "corrected score");
        }
        let sum: f32 = with.log_probabilities().iter().map(|log| log.exp()).sum();
        assert!(sum > 0.0 && sum <= 1.0 + 1e-5, "probabilities sum to {sum}");
        assert!(with.candidates.windows(2).all(|pair| pair[0].score >= pair[1].score));
    }
}

#[test]
fn the_embedded_model_takes_heads_made_from_it() {
    let model = harness::embedded();
    for form in [HeadForm::Parallel, HeadForm::Recurrent] {
        let setting = Setting::new(&model, &heads::from_model(&model, Heads { form, ..Heads::default() }));
        let best = (0..setting.logits.len()).max_by(|&a, &b| setting.logits[a].total_cmp(&setting.logits[b])).unwrap();
        assert_eq!(setting.greedy(&[1]).candidates[0].token, best as u32);
    }
}

#[test]
fn heads_without_their_matrices_are_an_error() {
    let model = synthetic::Model::RAGGED.source();
    let file = heads::from_model(&model, Heads::default());
    let fitted = block_on(HeadFile::open(&file)).unwrap().fit(&harness::open(&model)).unwrap();
    let error: Error = CpuHeads::new(fitted, Default::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::MissingTensor);
}
