//! Gradients by comparison with differences; what each stage moves; runs that go on.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use candle_core::Var;

use super::step::JointStep;
use super::*;
use crate::engine::TextParts;
use crate::model::architecture::RotaryOrder;
use crate::model::files::FileSource;
use crate::model::heads::{HeadForm, Taps};
use crate::model::{Architecture, ModelConfig};
use crate::sampling::SamplingParams;
use crate::train::answers::AnswerFile;
use crate::train::distill::{DistillOptions, distill};
use crate::train::prompts::Prompt;
use crate::train::shapes::HeadShape;
use crate::train::target::Target;

const RECURRENT: HeadShape = HeadShape {
    form: HeadForm::Recurrent,
    depths: 3,
    layers: 1,
    rank: 0,
    one_block: true,
    frozen_head: false,
    taps: Taps::NONE,
    context_layer: None,
};
const PARALLEL: HeadShape = HeadShape { form: HeadForm::Parallel, one_block: false, ..RECURRENT };

fn settings(shape: HeadShape) -> JointSettings {
    JointSettings {
        shape,
        draft_vocab: 0,
        tuning: Tuning::All,
        language: LanguageLoss::Original,
        loss: "kl+0.1ce".parse().unwrap(),
        depth_decay: 0.8,
        coefficient: 0.2,
        ramp: Ramp::Sine,
        ramp_share: 0.5,
        head_epochs: 1.0,
        epochs: 1.0,
        batch: 4,
        longest: 64,
        rate: 1e-3,
        head_factor: 4.0,
        warm_up: 0.1,
        floor: 0.1,
        weight_decay: 0.0,
        clip: 1.0,
        seed: 1,
        held_out: 0.2,
        held_out_answers: 100,
        evaluate_every: 0,
        patience: 0,
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn filled(shape: &[usize], mut value: impl FnMut() -> f32) -> Tensor {
    let count = shape.iter().product();
    Tensor::from_vec((0..count).map(|_| value()).collect::<Vec<_>>(), shape, &Device::Cpu).unwrap()
}

/// A model of random weights.
fn model(architecture: Architecture, order: RotaryOrder, seed: u64) -> Backbone {
    let is_llama = architecture == Architecture::Llama;
    let config = ModelConfig {
        architecture,
        hidden_size: 12,
        intermediate_size: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 4,
        vocab_size: 13,
        max_position_embeddings: 32,
        rms_norm_eps: 1e-5,
        rope_theta: 100.0,
        rope_scaling: None,
        tie_word_embeddings: is_llama,
        attention_bias: !is_llama,
        eos_token_ids: vec![2],
        bos_token_id: Some(1),
    };
    let mut random = Random::new(seed, 0);
    let mut tensors = BTreeMap::new();
    for rule in architecture.traits().tensors.iter().filter(|rule| rule.role.is_in(&config)) {
        for layer in 0..rule.count(config.num_hidden_layers) {
            let shape = rule.role.shape(&config);
            tensors.insert(
                rule.name_in(layer),
                filled(&shape, || random.fraction() - if shape.len() == 1 { 0.0 } else { 0.5 }),
            );
        }
    }
    Backbone::new(config, order, tensors, &Device::Cpu).unwrap()
}

fn answers(count: u32) -> Vec<Answer> {
    let answer = |i: u32| Answer {
        id: i.to_string(),
        category: String::new(),
        prompt: vec![1, 3 + i % 9],
        tokens: (0..4 + i % 3).map(|j| (7 * i + 5 * j + j * j) % 13).collect(),
        ended: false,
    };
    (0..count).map(answer).collect()
}

/// Moves a parameter along a direction.
fn move_along(var: &Var, direction: &Tensor, distance: f64) {
    var.set(&(var.as_tensor() + (direction * distance).unwrap()).unwrap()).unwrap();
}

/// The loss of heads without their correction, where they have one.
fn uncorrected(heads: &TrainHeads, step: &impl Fn() -> JointStep) -> Option<f64> {
    let correction = &heads.parameters.iter().find(|parameter| parameter.name == "correction.weight")?.var;
    let begin = correction.as_tensor().copy().unwrap();
    correction.set(&begin.zeros_like().unwrap()).unwrap();
    let loss = step().heads;
    correction.set(&begin).unwrap();
    Some(loss)
}

#[test]
fn gradients_are_those_of_the_losses() {
    let lora = Tuning::Lora(Lora { rank: 2, alpha: 3.0 });
    let shared = HeadShape { frozen_head: true, ..PARALLEL };
    for (architecture, order, tuning, language, shape) in [
        (Architecture::Llama, RotaryOrder::Pairs, Tuning::All, LanguageLoss::Text, RECURRENT),
        (Architecture::Qwen2, RotaryOrder::Halves, Tuning::All, LanguageLoss::Original, PARALLEL),
        (Architecture::Qwen2, RotaryOrder::Halves, lora, LanguageLoss::Original, RECURRENT),
        (Architecture::Llama, RotaryOrder::Halves, lora, LanguageLoss::Text, HeadShape { rank: 3, ..shared }),
    ] {
        let (original, mut backbone) = (model(architecture, order, 1), model(architecture, order, 2));
        let settings = JointSettings { tuning, language, loss: "ce".parse().unwrap(), ..settings(shape) };
        let vocabulary = DraftVocabulary::new((0..13).filter(|token| token % 5 != 4).collect(), 13).unwrap();
        let heads = TrainHeads::new(shape, vocabulary, &matrices(&backbone).unwrap(), 1, &Device::Cpu).unwrap();
        let parameters = backbone.train(tuning, 1).unwrap();
        let mut random = Random::new(3, 0);
        for parameter in heads.parameters.iter().chain(&parameters) {
            let direction = filled(parameter.var.dims(), || random.fraction() - 0.5);
            move_along(&parameter.var, &direction, 0.5);
        }
        let texts: Vec<_> = answers(3).iter().map(|answer| texts::Text::new(answer, 30).unwrap()).collect();
        let packed = Packed::new(&texts);
        let step = || -> JointStep {
            let scene = Scene { backbone: &backbone, original: &original, heads: &heads, settings: &settings };
            scene.step(&packed, Some(0.7), &parameters).unwrap()
        };
        let found = step();
        assert_eq!((found.of_heads.len(), found.of_model.len()), (heads.parameters.len(), parameters.len()));
        let of_heads = heads.parameters.iter().zip(&found.of_heads).map(|it| (it, 0.0));
        let of_model = parameters.iter().zip(&found.of_model).map(|it| (it, 1.0));
        for ((Parameter { name, var, .. }, gradient), of_model) in of_heads.chain(of_model) {
            let gradient = gradient.as_ref().unwrap_or_else(|| panic!("{name} has a gradient"));
            // The loss of heads is the model's too, times its coefficient. Where there is a correction, what it corrects is taught the same.
            let loss = || {
                let found = step();
                let heads = found.heads + uncorrected(&heads, &step).unwrap_or_default();
                of_model * (found.language + 0.7 * heads) + (1.0 - of_model) * heads
            };
            let direction = filled(var.dims(), || random.fraction() - 0.5);
            let begin = var.as_tensor().copy().unwrap();
            move_along(var, &direction, 2e-3);
            let above = loss();
            move_along(var, &direction, -4e-3);
            let expected = (above - loss()) / 4e-3;
            var.set(&begin).unwrap();
            let along = f64::from((gradient * &direction).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap());
            assert!(
                (along - expected).abs() < 1e-3 + 1e-2 * expected.abs(),
                "{architecture:?}, {tuning:?}, {name}: {along}, expected {expected}"
            );
        }
    }
}

#[test]
fn adapters_become_part_of_the_weights() {
    let mut backbone = model(Architecture::Qwen2, RotaryOrder::Halves, 1);
    let begin = backbone.clone();
    let parameters = backbone.train(Tuning::Lora(Lora { rank: 2, alpha: 3.0 }), 1).unwrap();
    assert_eq!(parameters.len(), 2 * 7 * 2);
    let hidden = |model: &Backbone| values(&model.hidden(&[1, 5, 3, 1, 7], &[3, 2]).unwrap());
    assert_eq!(hidden(&backbone), hidden(&begin), "adapters add nothing at first");
    let mut random = Random::new(3, 0);
    for parameter in &parameters {
        move_along(&parameter.var, &filled(parameter.var.dims(), || random.fraction() - 0.5), 1.0);
    }
    let merged = backbone.names().map(|name| (name.to_owned(), backbone.merged(name).unwrap())).collect();
    let merged = Backbone::new(begin.config().clone(), RotaryOrder::Halves, merged, &Device::Cpu).unwrap();
    let furthest = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let (adapted, resting) = (hidden(&backbone), hidden(&backbone.at_rest()));
    assert!(furthest(&hidden(&merged), &adapted) < 1e-4 && furthest(&resting, &adapted) < 1e-4);
    assert!(furthest(&hidden(&begin), &adapted) > 0.1);
}

/// The embedded model and answers of its own, in a folder of this name.
struct Stories {
    model: Backbone,
    answers: Vec<Answer>,
    folder: PathBuf,
}

impl Drop for Stories {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Stories {
    fn new(name: &str) -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
        let source = FileSource::open(path).unwrap();
        let checkpoint = pollster::block_on(crate::model::Checkpoint::open(&source)).unwrap();
        let folder = std::env::temp_dir().join(format!("draftree-joint-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let prompts: Vec<Prompt> = (0..48).map(Prompt::invented).collect();
        let options = DistillOptions {
            sampling: SamplingParams { temperature: 0.7, ..SamplingParams::default() },
            max_tokens: 40,
            batch: 48,
            max_prompt: 10,
        };
        let text = TextParts::new(&checkpoint, || 0).unwrap();
        let target = Target::load(&checkpoint, &source).unwrap();
        let mut file = AnswerFile::open(&folder.join("answers.jsonl")).unwrap();
        distill(&target, &text, &prompts, &options, &mut file, &mut |_| {}).unwrap();
        let model = Backbone::read(&checkpoint, &source, &Device::Cpu).unwrap();
        Self { model, answers: file.answers().to_vec(), folder }
    }

    fn material<'a>(&'a self, heads: Option<&'a TrainHeads>) -> Material<'a> {
        Material { original: &self.model, identity: "stories", answers: &self.answers, always: &[2], heads }
    }

    fn train(&self, settings: &JointSettings, run: &str, report: &mut dyn FnMut(Report)) -> Joined {
        train(self.material(None), settings, &self.folder.join(run), report).unwrap()
    }

    fn evaluations(&self, settings: &JointSettings, run: &str) -> (Joined, Vec<(usize, Evaluation)>) {
        let mut found = Vec::new();
        let joined = self.train(settings, run, &mut |report| {
            if let Report::Evaluated { step, evaluation, .. } = report {
                found.push((step, evaluation));
            }
        });
        (joined, found)
    }
}

#[test]
fn heads_learn_alone_first_and_then_with_the_model() {
    let stories = Stories::new("stages");
    for (language, shape) in
        [(LanguageLoss::Original, RECURRENT), (LanguageLoss::Text, HeadShape { frozen_head: true, ..PARALLEL })]
    {
        let alone = JointSettings { language, epochs: 0.0, head_epochs: 2.0, ..settings(shape) };
        let (joined, found) = stories.evaluations(&alone, &format!("alone {language:?}"));
        for name in stories.model.names() {
            assert_eq!(
                values(&joined.backbone.merged(name).unwrap()),
                values(&stories.model.merged(name).unwrap()),
                "{name}"
            );
        }
        let (first, last) = (&found[0].1, &joined.evaluation);
        assert_eq!((first.divergence, first.agreement, last.divergence, last.text), (0.0, 1.0, 0.0, first.text));
        assert!(last.heads.loss[1] < 0.9 * first.heads.loss[1], "{first}\n{last}");

        let both = JointSettings { language, epochs: 3.0, head_epochs: 1.0, ..settings(shape) };
        let (joined, found) = stories.evaluations(&both, &format!("both {language:?}"));
        assert_eq!(found[1].1.divergence, 0.0, "the model waits for its heads");
        let (second, last) = (&found[1].1, &found[found.len() - 1].1);
        assert!(last.divergence > 0.0 && last.divergence < 0.5, "{last}");
        assert!(last.objective < second.objective && last.heads.tree_8 > second.heads.tree_8, "{second}\n{last}");
        assert_eq!(joined.evaluation, found.iter().find(|(step, _)| *step == joined.step).unwrap().1);
        let head = joined.heads.head().clone();
        assert!(
            !shape.frozen_head
                || values(&head) == values(&joined.backbone.merged("model.embed_tokens.weight").unwrap())
        );
    }
}

#[test]
fn heads_that_were_trained_before_are_begun_with() {
    let stories = Stories::new("begun");
    let shape = HeadShape { rank: 4, ..PARALLEL };
    let alone = JointSettings { epochs: 0.0, head_epochs: 3.0, ..settings(shape) };
    let (trained, _) = stories.evaluations(&alone, "alone");
    let both = JointSettings { epochs: 1.0, head_epochs: 0.0, ..settings(shape) };
    let mut first = None;
    let mut train_with = |settings: &JointSettings, heads| {
        let material = stories.material(heads);
        train(material, settings, &stories.folder.join("both"), &mut |report| {
            if let Report::Evaluated { step: 0, evaluation, .. } = report {
                first = Some(evaluation);
            }
        })
    };
    let joined = train_with(&both, Some(&trained.heads)).unwrap();
    for other in [None, Some(&joined.heads)] {
        assert_eq!(train_with(&both, other).unwrap_err().code(), ErrorCode::InvalidOption, "another run");
    }
    let other = train_with(&settings(PARALLEL), Some(&trained.heads)).unwrap_err();
    assert!(other.to_string().contains("begin with"), "{other}");
    let first = first.unwrap();
    assert_eq!(first.heads, trained.evaluation.heads);
    assert!(joined.evaluation.heads.loss[1] < first.heads.loss[1], "{first}\n{}", joined.evaluation);
}

#[test]
fn a_model_without_regard_for_its_heads_learns_its_text() {
    let mut stories = Stories::new("text");
    // Every answer under several names, so that those that are held out were learnt all the same.
    let named = |answer: &Answer, name: usize| Answer { id: format!("{}-{name}", answer.id), ..answer.clone() };
    stories.answers = stories.answers.iter().flat_map(|answer| [0, 1, 2, 3].map(|name| named(answer, name))).collect();
    let language = LanguageLoss::Text;
    let settings = JointSettings { language, coefficient: 0.0, epochs: 2.0, head_epochs: 0.0, ..settings(PARALLEL) };
    let (_, found) = stories.evaluations(&settings, "run");
    let (first, last) = (&found[0].1, &found[found.len() - 1].1);
    assert!(last.text < 0.9 * first.text && last.heads.loss[0] < first.heads.loss[0], "{first}\n{last}");
}

#[test]
fn a_run_that_was_stopped_goes_on_as_if_it_had_not_been() {
    let stories = Stories::new("resume");
    let lora = Tuning::Lora(Lora { rank: 4, alpha: 8.0 });
    for (stop, tuning) in [(4, Tuning::All), (16, Tuning::All), (16, lora)] {
        let settings = JointSettings { tuning, evaluate_every: 4, ..settings(PARALLEL) };
        let (whole, stopped) = (format!("whole {stop} {tuning:?}"), format!("stopped {stop} {tuning:?}"));
        let [from, to] = [&whole, &stopped].map(|run| stories.folder.join(run));
        fs::create_dir_all(&to).unwrap();
        let expected = stories.train(&settings, &whole, &mut |report| match report {
            Report::Evaluated { step, .. } if step == stop => {
                for name in ["last.safetensors", "best.safetensors"] {
                    fs::copy(from.join(name), to.join(name)).unwrap();
                }
            }
            _ => {}
        });
        let mut steps = Vec::new();
        let found = stories.train(&settings, &stopped, &mut |report| match report {
            Report::Began { step, .. } | Report::Evaluated { step, .. } => steps.push(step),
            Report::Stepped { .. } => {}
        });
        assert!(steps[0] == stop && steps[1] > stop && steps[1] <= stop + 4, "{steps:?}");
        assert_eq!((found.step, &found.evaluation), (expected.step, &expected.evaluation));
        for name in stories.model.names() {
            assert_eq!(
                values(&found.backbone.merged(name).unwrap()),
                values(&expected.backbone.merged(name).unwrap()),
                "{name}"
            );
        }
        let other = JointSettings { rate: 2e-3, ..settings };
        let refused = train(stories.material(None), &other, &to, &mut |_| {}).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidOption, "{refused}");
    }
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let valid = settings(PARALLEL);
    assert!(valid.validate().is_ok());
    for (what, settings) in [
        ("depths", JointSettings { shape: HeadShape { depths: 0, ..PARALLEL }, ..valid.clone() }),
        ("batch", JointSettings { batch: 0, ..valid.clone() }),
        ("epochs", JointSettings { epochs: 0.0, head_epochs: 0.0, ..valid.clone() }),
        ("no number", JointSettings { epochs: f64::NAN, ..valid.clone() }),
        ("coefficient", JointSettings { coefficient: -1.0, ..valid.clone() }),
        ("rank", JointSettings { tuning: Tuning::Lora(Lora { rank: 0, alpha: 1.0 }), ..valid.clone() }),
    ] {
        assert_eq!(settings.validate().unwrap_err().code(), ErrorCode::InvalidOption, "{what}");
    }
}

#[test]
fn the_coefficient_rises_when_the_model_begins_to_learn() {
    let steps = settings::Steps { batch: 1, epoch: 10, heads: 10, joint: 100 };
    let at = |ramp, step| JointSettings { ramp, ..settings(PARALLEL) }.coefficient(step, steps);
    for ramp in [Ramp::Sine, Ramp::Linear, Ramp::None] {
        assert_eq!((at(ramp, 9), at(ramp, 109)), (None, Some(0.2)));
    }
    assert_eq!((at(Ramp::None, 10), at(Ramp::Linear, 34)), (Some(0.2), Some(0.1)));
    assert!(at(Ramp::Sine, 34) > at(Ramp::Linear, 34) && at(Ramp::Sine, 34) < Some(0.2));
    let rate = |step| settings(PARALLEL).rate(step, steps);
    assert!(rate(9) < 0.3 * rate(1) && rate(10) < 0.2 * rate(20) && rate(109) < 0.2 * rate(20));
}
