"""Compare learning rates over several seeds, with one page and a table.

    python docs/tasks/learning_rates.py

The page is what `packtrain report runs/lr_* --compare learning_rate` writes. As one command, in parallel processes and
without a script: `packtrain sweep ppo/cartpole --learning_rate 0.0003,0.003 --seeds 2 --total_steps 6000`.
"""

import packtrain

RATES, SEEDS = (0.0003, 0.003), range(2)

if __name__ == "__main__":
    runs = {
        rate: [
            packtrain.train(
                "ppo/cartpole",
                learning_rate=rate,
                seed=seed,
                total_steps=6_000,
                eval_every=3_000,
                output_dir=f"runs/lr_{rate}_{seed}",
                progress=False,
            )
            for seed in SEEDS
        ]
        for rate in RATES
    }
    for rate, of_rate in runs.items():
        finals = [run.metrics("eval")["return_mean"][-1] for run in of_rate]
        print(f"learning rate {rate}: " + ", ".join(f"{value:.0f}" for value in finals))
    page = packtrain.report(*sum(runs.values(), []), out="runs/learning_rates.html", compare="learning_rate")
    print(f"open {page} in a browser")
