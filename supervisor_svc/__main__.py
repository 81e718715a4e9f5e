"""python -m supervisor_svc: the same as `twostroke serve`."""

from supervisor_svc.cli import app

if __name__ == "__main__":
    app()
