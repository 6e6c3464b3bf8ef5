//! Draft heads that are right now and then: their output matrices fitted by ridge regression to what a model writes itself.
//!
//! The regression is of the hidden row that a head must foresee, so that the model's own output matrix turns it into logits: the file has
//! the product of the two. Blocks are random and small, so that every part of a head counts.

use draftree::backend::Backend as _;
use draftree::backend::cpu::CpuBackend;
use draftree::backend::cpu::heads::CpuHeads;
use draftree::backend::cpu::ops::MatrixF32;
use draftree::model::heads::HeadForm;
use draftree::model::{ByteSource, MemorySource};
use draftree::sampling::SamplingParams;
use draftree::speculate::tree::Tree;

use super::heads::{File, Heads, Tensor, cpu as cpu_heads, file};

/// Tokens that the model writes for the regression, in texts of this many.
const TEXTS: usize = 24;
const TEXT_TOKENS: usize = 160;
/// Strength of the ridge, relative to the mean square of the inputs.
const RIDGE: f64 = 1e-3;
/// What state and embedding add to a recurrent state, in sizes of a hidden row.
const STATE_SHARE: f32 = 0.05;
const EMBEDDING_SHARE: f32 = 4.0;

/// A text of the model and its hidden rows.
struct Written {
    tokens: Vec<u32>,
    hidden: Vec<Vec<f32>>,
}

impl Written {
    /// The rows that heads draft from.
    fn head_rows(&self, backend: &mut CpuBackend, heads: &CpuHeads) -> Vec<Vec<f32>> {
        if !heads.shape().reads_more() {
            return self.hidden.clone();
        }
        super::prefill(backend, 0, &self.tokens);
        let root = |at: usize| Tree::chain(&self.tokens[at..=at]).expect("one node is a tree");
        let row = |at: usize| backend.head_rows(heads, at, &root(at)).expect("every matrix is there").swap_remove(0);
        (0..self.tokens.len()).map(row).collect()
    }
}

/// Heads fitted to a small model, as a file. `count`, `form`, `noise` (of the blocks), `rank` and `seed` count; every head has an
/// output matrix of its own, or, in the recurrent form, all levels one.
pub fn fitted(model: &impl ByteSource, heads: Heads) -> MemorySource {
    let texts = written(model);
    let mut backend = super::cpu(model);
    let target = backend.target();
    // With blocks as they will be; outputs follow.
    let mut begun = file(model, Heads { own: false, draft_vocab: None, ..heads });
    if heads.form == HeadForm::Recurrent {
        balance(&mut begun, &texts, target.embedding);
    }
    let reader = cpu_heads(&begun.source(), model);
    let head_rows: Vec<Vec<Vec<f32>>> = texts.iter().map(|text| text.head_rows(&mut backend, &reader)).collect();
    let target = backend.target();
    let mut samples: Vec<Vec<(Vec<f32>, &[f32])>> = vec![Vec::new(); heads.count];
    for (text, head_rows) in texts.iter().zip(&head_rows) {
        for (at, first) in head_rows.iter().enumerate().take(text.tokens.len() - heads.count - 1) {
            let rows = match heads.form {
                HeadForm::Parallel => reader.parallel_rows(first).expect("every matrix is there"),
                HeadForm::Recurrent => {
                    let mut state = first.clone();
                    let path = text.tokens[at + 1..].iter().take(heads.count).enumerate();
                    let next = |(level, &token): (usize, &u32)| {
                        state = reader.next_state(target, level, &state, token).expect("every matrix is there");
                        state.clone()
                    };
                    path.map(next).collect()
                }
            };
            for (head, row) in rows.into_iter().enumerate() {
                samples[head].push((row, &text.hidden[at + head + 1]));
            }
        }
    }
    let outputs: Vec<Vec<f32>> = match heads.form {
        HeadForm::Parallel => samples.iter().map(|samples| output(target.lm_head, samples)).collect(),
        HeadForm::Recurrent => vec![output(target.lm_head, &samples.concat())],
    };
    with_outputs(begun, heads, &outputs, target.lm_head).source()
}

/// The file with its output matrices: one for all in our own format, or one each under the names of Medusa v0.1.
fn with_outputs(begun: File, heads: Heads, outputs: &[Vec<f32>], lm_head: &MatrixF32) -> File {
    let shape = [lm_head.rows, lm_head.columns];
    if let [output] = outputs {
        return begun.with("head.weight", Tensor::f32(&shape, output));
    }
    assert!(heads.rank.is_none(), "Medusa heads have no correction");
    let mut medusa = File::default();
    for (head, output) in outputs.iter().enumerate() {
        for layer in 0..heads.layers {
            for end in ["weight", "bias"] {
                let tensor = begun.tensors[&format!("blocks.{head}.{layer}.{end}")].clone();
                medusa = medusa.with(&format!("{head}.{layer}.linear.{end}"), tensor);
            }
        }
        medusa = medusa.with(&format!("{head}.{}.weight", heads.layers), Tensor::f32(&shape, output));
    }
    medusa
}

/// Texts as the model samples them, with the hidden row of every token.
fn written(model: &impl ByteSource) -> Vec<Written> {
    let mut backend = super::cpu(model);
    let vocab_size = backend.config().vocab_size;
    let text = |seed: usize| {
        let sampling = SamplingParams { temperature: 0.5, seed: seed as u64, ..Default::default() };
        let setup = super::setup(sampling, &[1], TEXT_TOKENS as u32, vocab_size);
        let mut tokens = vec![1];
        tokens.extend(super::decode(&mut backend, 0, 1, &setup, 1));
        // Behind a whole text every row is there already; computed again they are the same.
        let hidden = (0..tokens.len()).map(|at| {
            let root = Tree::chain(&tokens[at..=at]).expect("one node is a tree");
            backend.hidden(at, &root).swap_remove(0)
        });
        let hidden = hidden.collect();
        Written { tokens, hidden }
    };
    (0..TEXTS).map(text).collect()
}

/// Makes the embedding of a token count for more than the state in the update of the state.
fn balance(file: &mut File, texts: &[Written], embedding: &MatrixF32) {
    let size = embedding.columns;
    let square = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>() / size as f32;
    let rows: Vec<&Vec<f32>> = texts.iter().flat_map(|text| &text.hidden).collect();
    let states = (rows.iter().map(|row| square(row)).sum::<f32>() / rows.len() as f32).sqrt();
    let tokens = texts.iter().flat_map(|text| &text.tokens);
    let embeddings = tokens.map(|&token| square(embedding.row(token as usize))).sum::<f32>() / rows.len() as f32;
    let factors = [STATE_SHARE, EMBEDDING_SHARE * states / embeddings.sqrt()];
    let tensor = file.tensors.get_mut("blocks.0.0.weight").expect("one block for all levels");
    let values: Vec<f32> = tensor.data.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    let scaled: Vec<f32> = values.iter().enumerate().map(|(i, value)| value * factors[i / size % 2]).collect();
    *tensor = Tensor::f32(&[size, 2 * size], &scaled);
}

/// `lm_head · A`, with A the linear map that takes inputs closest to what they are paired with.
fn output(lm_head: &MatrixF32, samples: &[(Vec<f32>, &[f32])]) -> Vec<f32> {
    let size = lm_head.columns;
    let (mut gram, mut cross) = (vec![0.0f64; size * size], vec![0.0f64; size * size]);
    for (x, y) in samples {
        for i in 0..size {
            for j in 0..size {
                gram[i * size + j] += f64::from(x[i]) * f64::from(x[j]);
                cross[i * size + j] += f64::from(x[i]) * f64::from(y[j]);
            }
        }
    }
    let mean_square = (0..size).map(|i| gram[i * size + i]).sum::<f64>() / size as f64;
    (0..size).for_each(|i| gram[i * size + i] += RIDGE * mean_square);
    let map = solve(gram, cross, size);
    let product = |row: &[f32], column: usize| -> f32 {
        row.iter().enumerate().map(|(j, &weight)| f64::from(weight) * map[column * size + j]).sum::<f64>() as f32
    };
    (0..lm_head.rows).flat_map(|row| (0..size).map(move |column| product(lm_head.row(row), column))).collect()
}

/// X of `a · X = b`, both `[size, size]`, by elimination; `a` is symmetric and positive.
fn solve(mut a: Vec<f64>, mut b: Vec<f64>, size: usize) -> Vec<f64> {
    for pivot in 0..size {
        for row in 0..size {
            let factor = if row == pivot { 0.0 } else { a[row * size + pivot] / a[pivot * size + pivot] };
            for column in 0..size {
                a[row * size + column] -= factor * a[pivot * size + column];
                b[row * size + column] -= factor * b[pivot * size + column];
            }
        }
    }
    (0..size * size).map(|i| b[i] / a[i / size * (size + 1)]).collect()
}

/// The heads that tests of whole generations use: four parallel ones, right often enough to go several tokens deep.
pub fn parallel(model: &impl ByteSource) -> MemorySource {
    fitted(model, Heads { count: 4, layers: 1, noise: 0.3, ..Heads::default() })
}

/// Recurrent ones, whose random features take up each drafted token.
pub fn recurrent(model: &impl ByteSource) -> MemorySource {
    fitted(model, Heads { form: HeadForm::Recurrent, count: 4, noise: 4.0, seed: 2, ..Heads::default() })
}

/// The same on a row into which two layers were fused.
pub fn fused(model: &impl ByteSource) -> MemorySource {
    let recurrent = Heads { form: HeadForm::Recurrent, count: 4, noise: 4.0, seed: 2, ..Heads::default() };
    fitted(model, Heads { taps: &[0, 3], ..recurrent })
}

/// The same on a row that looked at the context of another layer, too.
pub fn looking_back(model: &impl ByteSource) -> MemorySource {
    let recurrent = Heads { form: HeadForm::Recurrent, count: 4, noise: 4.0, seed: 2, ..Heads::default() };
    fitted(model, Heads { taps: &[1], context: Some(2), ..recurrent })
}
