//! The engine against the reference outputs, natively.
use draftree::backend::cpu::{CpuBackend, CpuWeights};
use draftree::backend::gpu::{GpuBackend, GpuWeights, device::Gpu};
use draftree::backend::{Backend, GenerationSetup};
use draftree::model::files::FileSource;
use draftree::model::{Checkpoint, stream_weights};
use draftree::sampling::SamplingParams;
use draftree::speculate::tree::Tree;

fn setup(prompt: &[u32], n: u32) -> GenerationSetup {
    GenerationSetup {
        sampling: SamplingParams::default(),
        end_tokens: vec![],
        max_tokens: n,
        prompt: prompt.to_vec(),
        valid_tokens: u32::MAX,
    }
}

async fn run<B: Backend>(b: &mut B, prompt: &[u32], n: u32) -> Vec<u32> {
    let (root, head) = prompt.split_last().unwrap();
    b.prefill(0, head).await.unwrap();
    let mut s = setup(prompt, n);
    s.valid_tokens = b.config().vocab_size as u32;
    b.begin(head.len(), *root, &s).unwrap();
    let mut out = vec![];
    while out.len() < n as usize {
        b.submit_step().await.unwrap();
        out.extend(b.next_record().await.unwrap().tokens);
    }
    out
}

#[test]
fn smoke() {
    pollster::block_on(async {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/models/stories260K/stories260K-q8_0.gguf");
        let source = FileSource::open(std::path::Path::new(path)).unwrap();
        let ck = Checkpoint::open(&source).await.unwrap();
        let golden: serde_json::Value = serde_json::from_slice(
            &std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/golden/stories260K-q8_0.json")).unwrap(),
        )
        .unwrap();
        let mut cw = CpuWeights::default();
        stream_weights(&ck, &source, &mut cw, &mut |_, _| {}).await.unwrap();
        let mut cpu = CpuBackend::new(ck.config.clone(), cw, None).unwrap();
        let gpu = Gpu::request().await.unwrap();
        println!("{:?}", gpu.caps);
        let mut gw = GpuWeights::new(gpu.clone());
        stream_weights(&ck, &source, &mut gw, &mut |_, _| {}).await.unwrap();
        let mut g = GpuBackend::new(ck.config.clone(), gw, draftree::backend::gpu::kernels::Kernels::new(gpu), None)
            .await
            .unwrap();
        g.warm_up().await.unwrap();
        let t = std::time::Instant::now();
        g.self_check().await.unwrap();
        println!("check {:?}", t.elapsed());
        for p in golden["prompts"].as_array().unwrap().iter().take(3) {
            let ids: Vec<u32> =
                p["prompt_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
            let want: Vec<u32> =
                p["greedy_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
            let a = cpu.evaluate(0, &Tree::chain(&ids[..ids.len().min(64)]).unwrap()).await.unwrap();
            let b = g.evaluate(0, &Tree::chain(&ids[..ids.len().min(64)]).unwrap()).await.unwrap();
            let d = a.iter().zip(&b).map(|(x, y)| (x - y).abs()).fold(0f32, f32::max);
            println!("max logit diff {d}  {:?} {:?}", &a[..4], &b[..4]);
            let c = run(&mut cpu, &ids, 128).await;
            println!("cpu {}", c.iter().zip(&want).take_while(|(x, y)| x == y).count());
            let t = std::time::Instant::now();
            let c = run(&mut g, &ids, 128).await;
            println!(
                "gpu {} {:?} {:?}",
                c.iter().zip(&want).take_while(|(x, y)| x == y).count(),
                t.elapsed(),
                g.counters()
            );
        }
    });
}
