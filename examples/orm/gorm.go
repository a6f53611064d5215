package orm

import (
	"context"

	"gorm.io/gorm"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/postgres"
)

// GORM pays through GORM.
func GORM(engine *stet.Engine, store *postgres.Store, db *gorm.DB) Pay {
	te := within(engine, postgres.OverSQL(store, beginGORM(db)))
	return func(ctx context.Context, op stet.Op, p Payment) (stet.Result[Payment], error) {
		return stet.DoTx(ctx, te, op, func(ctx context.Context, tx gormTx) (Payment, error) {
			db := tx.db.WithContext(ctx)
			if err := db.Create(&p).Error; err != nil {
				return p, err
			}
			res := db.Table("accounts").Where("name = ? AND balance >= ?", p.Account, p.Cents).
				Update("balance", gorm.Expr("balance - ?", p.Cents))
			if res.Error == nil && res.RowsAffected == 0 {
				return p, ErrOverdrawn
			}
			return p, res.Error
		})
	}
}

// gormTx is needed because GORM's transaction is a *gorm.DB, whose methods are
// GORM's own: the one of database/sql beneath it is Statement.ConnPool, and
// Commit and Rollback return their error in a field.
type gormTx struct {
	postgres.Querier // the transaction's Statement.ConnPool
	db               *gorm.DB
}

func (tx gormTx) Commit() error   { return tx.db.Commit().Error }
func (tx gormTx) Rollback() error { return tx.db.Rollback().Error }

func beginGORM(db *gorm.DB) func(context.Context) (gormTx, error) {
	return func(ctx context.Context) (gormTx, error) {
		tx := db.WithContext(ctx).Begin()
		return gormTx{tx.Statement.ConnPool, tx}, tx.Error
	}
}
